"""The router as a process: sockets opened, inherited and refused, signals, limits, deadlines."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from llmgw.config.listeners import ListenError, bound_address, open_listener
from llmgw.config.server import ServerConfig
from llmgw.router import main as router_main
from llmgw.server.router_process import start_router
from tests.patience import PATIENCE
from tests.router.support import PROGRAM, Client, Fleet, fleet_of, hang, plain, post, until


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=20, **options)  # type: ignore[call-overload,no-any-return]


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def test_a_busy_port_is_named_in_a_sentence(tmp_path: Path) -> None:
    with open_listener("127.0.0.1:0", "listen") as taken:
        address = bound_address(taken)
        said = one_sentence(run(f"--state={tmp_path}", f"--listen={address}"))
        assert f"port {taken.getsockname()[1]} on 127.0.0.1 is busy" in said
        assert f"(pid {os.getpid()}) listens there" in said
        assert "set --listen" in said
        with pytest.raises(ListenError, match="set listen"):
            open_listener(address, "listen")


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("192.0.2.7:8000", "no address of this host"),
        ("nowhere", "--listen"),
        ("name.invalid:80", "no address of this host"),
    ],
)
def test_an_address_that_is_not_ours_is_named_in_a_sentence(tmp_path: Path, listen: str, said: str) -> None:
    assert said in one_sentence(run(f"--state={tmp_path}", f"--listen={listen}"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to listen on"),
        (["--listen-fd=0"], "descriptor 0"),
        (["--listen-fd=77"], "descriptor 77"),
        (["--listen=127.0.0.1:0", "--state=/proc/nowhere"], "state folder"),
    ],
)
def test_a_start_that_cannot_be_says_why(tmp_path: Path, arguments: list[str], said: str) -> None:
    arguments = [argument.format(tmp=tmp_path) for argument in arguments]
    assert said in one_sentence(run(f"--state={tmp_path}", *arguments, stdin=subprocess.DEVNULL))


def test_a_second_router_on_the_same_state_refuses(router) -> None:
    asyncio.run(router.serving())
    said = one_sentence(run(f"--state={router.state}", "--listen=127.0.0.1:0"))
    assert f"pid {router.process.pid}" in said
    assert (router.state / "router-0.sock").exists()


def test_a_dead_routers_socket_file_is_replaced(new_router) -> None:
    async def main() -> None:
        first = await new_router().serving()
        first.stop()
        assert (first.state / "router-0.sock").exists()
        second = await new_router().serving()
        async with fleet_of(second) as fleet:
            assert fleet.hello[0].pid == second.process.pid

    asyncio.run(main())


def test_sigterm_lets_running_requests_end_and_refuses_new_connections(new_router) -> None:
    async def main() -> None:
        router = await new_router().serving()
        async with fleet_of(router) as fleet:
            go_on = asyncio.Event()

            async def script(seen, reader, writer) -> None:
                await go_on.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood")

            (engine,) = await fleet.serve(script)
            idle = await fleet.client()
            idle.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
            await idle.answer()
            client = await fleet.client()
            client.send(post())
            await until(lambda: engine.requests, "the engine has the request")
            router.process.send_signal(signal.SIGTERM)
            assert await idle.rest() == b""
            with pytest.raises(OSError, match=r"refused|Connect call failed"):
                await fleet.client()
            go_on.set()
            assert (await client.answer()).body == b"good"
            await until(lambda: router.process.poll() == 0, "it has ended")

    asyncio.run(main())


def test_a_draining_router_answers_once_more_on_connections_that_it_promised_to_keep(new_router) -> None:
    async def main() -> None:
        router = await new_router().serving()
        async with fleet_of(router) as fleet:
            go_on = asyncio.Event()

            async def script(seen, reader, writer) -> None:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngo")
                await go_on.wait()
                writer.write(b"od")

            (engine,) = await fleet.serve(script)
            idle, busy = await fleet.client(), await fleet.client()
            idle.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
            await idle.answer()
            busy.send(post())
            (
                _,
                headers,
            ) = await busy.head()  # this answer has begun, and its head promises a connection that is kept
            assert headers.get("connection") != "close"
            router.process.send_signal(signal.SIGTERM)
            await until(lambda: "stopping" in router.log_path.read_text(), "it stops")
            idle.send(post())
            go_on.set()
            assert await busy.reader.readexactly(4) == b"good"
            busy.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
            for client in (idle, busy):
                answer = await client.answer()
                assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert len(engine.requests) == 2
            await until(lambda: router.process.poll() == 0, "it has ended")

    asyncio.run(main())


@pytest.mark.parametrize("again", [True, False], ids=["a second signal", "the drain limit"])
def test_a_drain_has_an_end(new_router, again: bool) -> None:
    async def main() -> None:
        router = await new_router("--drain-s=60" if again else "--drain-s=0.2").serving()
        async with fleet_of(router) as fleet:
            (engine,) = await fleet.serve(hang)
            client = await fleet.client()
            client.send(post())
            await until(lambda: engine.requests, "the engine has the request")
            router.process.send_signal(signal.SIGTERM)
            await until(lambda: "stopping" in router.log_path.read_text(), "it stops")
            if again:
                router.process.send_signal(signal.SIGTERM)
            await until(lambda: router.process.poll() == 0, "it has ended")
            await asyncio.wait_for(engine.requests[0].closed.wait(), 5 * PATIENCE)

    asyncio.run(main())


def test_a_started_router_inherits_the_socket_ignores_ctrl_c_and_survives_its_parent(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from llmgw.config.server import ServerConfig\n"
        "from llmgw.config.listeners import bound_address, open_listener\n"
        "from llmgw.server.router_process import start_router\n"
        "sock = open_listener('127.0.0.1:0', 'listen')\n"
        f"child = start_router(Path({str(state)!r}), [sock], ServerConfig())\n"
        "print(child.pid, bound_address(sock), flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid_text, address = parent.stdout.readline().split()
    pid, port = int(pid_text), int(address.rpartition(":")[2])
    try:
        assert os.getsid(pid) == pid
        parent.kill()
        parent.wait()
        parent.stdout.close()

        async def main() -> None:
            await until(lambda: "serving on" in (state / "router.log").read_text(), "it serves")
            os.kill(pid, signal.SIGINT)
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            client.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
            assert (await client.answer()).status == 200
            client.close()

        asyncio.run(main())
        assert (state / "router.log").stat().st_mode & 0o077 == 0
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_replacement_takes_over_the_socket_while_clients_queue_on_it(tmp_path: Path) -> None:
    async def main() -> None:
        with open_listener("127.0.0.1:0", "listen") as sock:
            address = sock.getsockname()
            first = start_router(tmp_path, [sock], ServerConfig())
            log = tmp_path / "router.log"
            await until(lambda: f"(pid {first.pid})" in log.read_text(), "the first serves")
            first.send_signal(signal.SIGTERM)
            await until(lambda: first.poll() is not None, "the first has ended")
            client = Client(*await asyncio.open_connection(*address))  # queues: nobody accepts
            client.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
            second = start_router(tmp_path, [sock], ServerConfig())
            assert (await client.answer()).status == 200
            client.close()
            second.kill()
            second.wait()

    asyncio.run(main())


def test_sockets_from_systemd_are_used(tmp_path: Path) -> None:
    sock = open_listener("[::1]:0", "listen")
    code = (
        "import os, sys\n"
        "os.dup2(int(sys.argv[1]), 3)\n"
        "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n"
        "os.execv(sys.argv[2], sys.argv[2:])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(sock.fileno()), *PROGRAM, f"--state={tmp_path}"],
        pass_fds=(sock.fileno(), 3),
        stderr=subprocess.PIPE,
    )

    async def main() -> None:
        client = Client(*await asyncio.open_connection(*sock.getsockname()[:2]))
        client.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
        assert (await client.answer()).status == 200
        client.close()

    try:
        asyncio.run(main())
    finally:
        process.kill()
        process.communicate()
        sock.close()


def test_an_ipv6_address_is_listened_on(new_router) -> None:
    async def main() -> None:
        router = await new_router(listen="[::1]:0").serving()
        async with fleet_of(router) as fleet:
            assert fleet.hello[0].listen == f"[::1]:{router.port}"
            await fleet.serve(plain(b"good"))
            assert (await fleet.ask(post())).body == b"good"

    asyncio.run(main())


def test_clients_beyond_the_limit_are_told_so(new_router) -> None:
    async def main() -> None:
        router = await new_router("--connections-max=2").serving()
        fleet = Fleet(router)
        first, second = [await fleet.client() for _ in range(2)]
        for client in (first, second):
            client.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
            assert (await client.answer()).status == 200
        third = await fleet.client()
        third.send(post())
        answer = await third.answer()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert "retry-after" in answer.headers
        assert await third.rest() == b""
        third.close()
        first.close()

        async def served() -> bool:
            client = await fleet.client()
            client.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
            return (await client.answer()).status == 200

        end = time.monotonic() + 5
        while not await served():
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        fleet.close()

    asyncio.run(main())


def test_slow_heads_and_idle_connections_are_ended_in_time(new_router) -> None:
    async def main() -> None:
        router = await new_router("--header-timeout-s=0.4", "--idle-timeout-s=0.8").serving()
        fleet = Fleet(router)
        slow, silent, idle = [await fleet.client() for _ in range(3)]
        started_at = time.monotonic()
        idle.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
        await idle.answer()

        async def drip() -> None:
            for byte in post():
                slow.send(bytes([byte]))
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert (await slow.answer()).status == 408
        assert 0.3 < time.monotonic() - started_at < 3
        dripping.cancel()
        await silent.ended()
        await idle.ended()
        assert 0.7 < time.monotonic() - started_at < 4
        fleet.close()

    asyncio.run(main())


def test_file_limits_that_are_too_low_are_said(tmp_path: Path) -> None:
    script = 'ulimit -n 256; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", script, "-", *PROGRAM, f"--state={tmp_path}", "--listen=127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    process.kill()
    process.communicate()
    assert "may open 256 files" in said
    assert "LimitNOFILE=" in said


def test_without_uvloop_the_standard_loop_serves(new_router) -> None:
    without = (
        "import sys; sys.modules['uvloop'] = None; sys.argv.insert(1, 'router')\n"
        "from llmgw.__main__ import main; main()"
    )
    program = (sys.executable, "-c", without)

    async def main() -> None:
        router = await new_router(program=program).serving()
        async with fleet_of(router) as fleet:
            (engine,) = await fleet.serve(plain(b"good"))
            assert (await fleet.ask(post(b'{"model":"m","x":"' + b"y" * 3_000_000 + b'"}'))).body == b"good"
            engine.script = hang
            client = await fleet.client()
            client.send(post())
            await until(lambda: len(engine.requests) == 2, "the engine has the request")
            client.close()
            await asyncio.wait_for(engine.requests[1].closed.wait(), 5 * PATIENCE)
            router.process.send_signal(signal.SIGTERM)
            await until(lambda: router.process.poll() == 0, "it has ended")

    asyncio.run(main())


def test_a_router_without_a_table_lists_no_models_rather_than_none(new_router) -> None:
    router = asyncio.run(new_router().serving())
    answer = httpx.get(f"http://127.0.0.1:{router.port}/v1/models", trust_env=False)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "does not know its models yet" in answer.json()["error"]["message"]
    assert httpx.get(f"http://127.0.0.1:{router.port}/health", trust_env=False).status_code == 200


def test_a_full_disk_does_not_keep_a_router_from_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with router_main._lock(tmp_path / "router-0.lock"):
        pass
