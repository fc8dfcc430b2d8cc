"""Shards as real processes: started, watched, stopped and ended whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llmgw.agent.processes import read_process, uncovered
from llmgw.agent.rotation import ENDED_KEPT_BYTES
from llmgw.agent.supervisor import Supervisor
from llmgw.hardware.tcp_ports import is_free
from llmgw.messages.agent import HeldShard, Progress, Rendezvous
from tests.agent.fakes import held_one, make_config, make_spec, make_supervisor

# Each run of the suite in a part of its own, below the ports that the kernel gives out (from 32768).
_LOW = 20000 + os.getpid() % 40 * 300
PORTS = f"{_LOW}-{_LOW + 299}"


class Running:
    """A supervisor with every transition that it told of, in order."""

    def __init__(self, supervisor: Supervisor, work_dir: Path) -> None:
        self.supervisor = supervisor
        self.work_dir = work_dir
        self.told: list[str] = []
        supervisor.listen(self.told.append)

    async def reach(self, phase: str, shard_id: str = "r1-0", deadline_s: float = 10.0) -> HeldShard:
        async def seen() -> HeldShard:
            while True:
                shard = await held_one(self.supervisor, shard_id)
                if shard.phase == phase:
                    return shard
                assert shard.phase not in ("stopped", "failed"), f"{shard.phase}: {shard.reason}"
                await asyncio.sleep(0.02)

        return await asyncio.wait_for(seen(), deadline_s)


@asynccontextmanager
async def running(work_dir: Path, **settings: object) -> AsyncIterator[Running]:
    supervisor = make_supervisor(make_config(work_dir, port_range=PORTS, **settings))
    await supervisor.adopt()
    try:
        yield Running(supervisor, work_dir)
    finally:
        await supervisor.close()
        for info in uncovered(os.path.realpath(work_dir), []):
            os.kill(info.pid, signal.SIGKILL)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), 25)

    asyncio.run(limited())


def alive(pid: int) -> bool:
    info = read_process(pid)
    return info is not None and info.alive


def test_a_leader_goes_from_starting_to_ready_and_tells_its_ports_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec(nodes=2, gpus=["GPU-1"], fabric="ib-a"))
            first = await held_one(node.supervisor)
            assert (first.phase, first.version) == ("starting", 1)
            assert first.http_port in range(_LOW, _LOW + 300)
            assert first.rendezvous_port in range(_LOW, _LOW + 300)
            assert first.rendezvous_port != first.http_port
            ready = await node.reach("ready")
            assert ready.version == 2
            assert ready.http_port == first.http_port
            assert ready.engine_pid is not None
            assert alive(ready.engine_pid)

    run(test)


def test_an_engine_runs_in_a_session_of_its_own_in_its_folder_with_the_marker(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec(env={"MINE": "1", "LLMGW_SHARD": "forged"}))
            ready = await node.reach("ready")
            folder = tmp_path / "shards" / "r1-0"
            env = json.loads((folder / "run" / "environment.json").read_text())
            assert env["LLMGW_SHARD"] == "r1-0"
            assert env["LLMGW_WORK_DIR"] == os.path.realpath(tmp_path)
            assert env["SPT_NOENV"] == "1"
            assert env["MINE"] == "1"
            assert ready.engine_pid is not None
            info = read_process(ready.engine_pid)
            assert info is not None
            assert info.session == ready.engine_pid
            assert (folder / "engine.log").stat().st_mode & 0o777 == 0o600

    run(test)


def test_a_start_of_a_shard_that_is_or_was_held_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec())
            pid = (await node.reach("ready")).engine_pid
            await node.supervisor.start(make_spec())
            assert (await held_one(node.supervisor)).engine_pid == pid
            await node.supervisor.stop("r1-0", "scaled down")
            ended = await node.reach("stopped")
            await node.supervisor.forget(["r1-0"])
            assert await node.supervisor.held() == []
            await node.supervisor.start(make_spec())
            again = await held_one(node.supervisor)
            assert (again.phase, again.version) == ("stopped", ended.version)

    run(test)


def test_a_stop_ends_the_engine_and_says_stopped_when_nothing_is_left(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", "sidecar:waits"))
            pid = (await node.reach("ready")).engine_pid
            await node.supervisor.stop("r1-0", "drained")
            stopping = await held_one(node.supervisor)
            assert stopping.phase in ("stopping", "stopped")
            stopped = await node.reach("stopped")
            assert stopped.reason == "drained"
            assert stopped.exit_code == -signal.SIGTERM
            assert pid is not None
            assert not alive(pid)
            assert uncovered(os.path.realpath(tmp_path), []) == []

    run(test)


def test_an_engine_that_ignores_sigterm_is_killed_after_the_stop_timeout(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", "ignores-sigterm", stop_timeout_s=0.3))
            await node.reach("ready")
            await node.supervisor.stop("r1-0", "drained")
            assert (await node.reach("stopped")).exit_code == -signal.SIGKILL

    run(test)


def test_what_only_a_parent_led_to_is_ended_though_its_parent_ends_first(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, stop_timeout="5s") as node:
            await node.supervisor.start(make_spec("r1-0", "has-helper"))
            await node.reach("ready")
            helped = int((tmp_path / "shards" / "r1-0" / "run" / "helped.pid").read_text())
            assert alive(helped)
            await node.supervisor.stop("r1-0", "scaled down")
            await node.reach("stopped")
            assert not alive(helped)

    run(test)


def test_a_grandchild_that_left_the_session_is_ended_with_its_shard(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, stop_timeout="500ms") as node:
            await node.supervisor.start(make_spec("r1-0", "leaves-orphan"))
            await node.reach("ready")
            orphan = int((tmp_path / "shards" / "r1-0" / "run" / "orphan.pid").read_text())
            assert alive(orphan)
            await node.supervisor.stop("r1-0", "drained")
            stopped = await node.reach("stopped")
            assert not alive(orphan)
            # In a gang one rank hangs and another fails of it: what the first wrote is in no failure of its own.
            assert stopped.output_tail[0] == "engine begins"

    run(test)


def test_of_a_shard_that_has_ended_only_the_end_of_its_output_stays_on_the_disk(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec())
            await node.reach("ready")
            folder = tmp_path / "shards" / "r1-0"
            with (folder / "engine.log").open("ab") as out:
                out.write(b"a line of many\n" * (ENDED_KEPT_BYTES // 10))
                out.write(b"the last line\n")
            await node.supervisor.stop("r1-0", "drained")
            stopped = await node.reach("stopped")
            assert "the last line" in stopped.output_tail
            assert sum(path.stat().st_size for path in folder.glob("engine.log*")) < ENDED_KEPT_BYTES + 4096

    run(test)


def test_an_engine_that_dies_fails_its_shard_with_code_and_last_output(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", "leaves-orphan", "dies"))
            failed = await node.reach("failed")
            assert failed.reason == "engine exited with code 3"
            assert failed.exit_code == 3
            assert failed.output_tail == ["engine begins", "CUDA error: out of memory"]
            assert not alive(int((tmp_path / "shards" / "r1-0" / "run" / "orphan.pid").read_text()))

    run(test)


def test_a_killed_engine_is_seen_within_a_second(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec())
            ready = await node.reach("ready")
            assert ready.engine_pid is not None
            os.kill(ready.engine_pid, signal.SIGKILL)
            failed = await node.reach("failed", deadline_s=1.0)
            assert failed.reason == "engine was killed by SIGKILL"
            assert failed.exit_code == -9

    run(test)


def test_a_dead_sidecar_takes_its_engine_with_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", "sidecar:dies"))
            failed = await node.reach("failed")
            assert failed.reason == "sidecar exited with code 3"
            assert "sidecar: CUDA error: out of memory" in failed.output_tail
            assert uncovered(os.path.realpath(tmp_path), []) == []

    run(test)


def test_loading_has_a_deadline_and_the_reason_names_the_phase(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", "loads-for-ever", load_timeout_s=3.0))
            failed = await node.reach("failed")
            assert failed.reason is not None
            assert failed.reason.startswith("the engine did not answer within 3 s of loading")
            assert "nothing listens yet" in failed.reason

    run(test)


def test_while_it_loads_what_the_last_check_said_rides_on_the_shard_and_goes_with_its_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", "loads-for-ever", load_timeout_s=20.0))

            async def shown() -> Progress:
                while True:
                    progress = (await held_one(node.supervisor)).progress
                    if progress is not None:
                        return progress
                    await asyncio.sleep(0.02)

            progress = await asyncio.wait_for(shown(), 10)
            assert (progress.what, "nothing listens yet" in progress.note) == ("load", True)
            await node.supervisor.stop("r1-0", "not wanted any more")
            assert (await node.reach("stopped")).progress is None

    run(test)


def test_a_200_from_health_is_not_ready_while_the_one_token_request_fails(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", "never-answers", load_timeout_s=1.0))
            failed = await node.reach("failed")
            assert failed.reason is not None
            assert "loaded but answered no one-token request within 1 s" in failed.reason
            assert "core dead" in failed.reason

    run(test)


def test_the_answers_of_another_shard_at_its_port_do_not_make_it_ready(tmp_path: Path) -> None:
    """Two agents on one machine may choose one port in the same moment; one of their engines then loses."""

    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", "loads-for-ever", load_timeout_s=30.0))
            port = (await node.reach("starting")).http_port
            other = subprocess.Popen(  # noqa: ASYNC220 - a fork takes a moment
                [sys.executable, str(Path(__file__).parent / "engine_program.py"), "--port", str(port)],
                env={**os.environ, "LLMGW_SHARD": "other-0", "LLMGW_WORK_DIR": "/elsewhere"},
                cwd=tmp_path,
            )
            try:
                shard = await held_one(node.supervisor)
                while (
                    shard.progress is None or f"another shard answers at port {port}" not in shard.progress.note
                ):
                    assert shard.phase == "starting", shard
                    await asyncio.sleep(0.02)
                    shard = await held_one(node.supervisor)
            finally:
                other.kill()
                other.wait()

    run(test)


def test_a_stop_works_while_the_engine_still_loads(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", "loads-for-ever"))
            await node.supervisor.stop("r1-0", "changed my mind")
            stopped = await node.reach("stopped")
            assert stopped.reason == "changed my mind"
            assert uncovered(os.path.realpath(tmp_path), []) == []

    run(test)


def test_a_worker_waits_for_its_leader_and_is_ready_without_http(tmp_path: Path) -> None:
    async def test() -> None:
        with socket.socket() as leader:
            leader.bind(("127.0.0.1", 0))
            spec = make_spec(
                "r1-1", rank=1, nodes=2, rendezvous=Rendezvous(host="127.0.0.1", port=leader.getsockname()[1])
            )
            async with running(tmp_path) as node:
                await node.supervisor.start(spec)
                waiting = await held_one(node.supervisor, "r1-1")
                assert (waiting.phase, waiting.http_port, waiting.engine_pid) == ("waiting", None, None)
                leader.listen()
                ready = await node.reach("ready", "r1-1")
                assert ready.engine_pid is not None

    run(test)


def test_a_worker_whose_leader_never_listens_fails_after_the_rendezvous_timeout(tmp_path: Path) -> None:
    async def test() -> None:
        with socket.socket() as leader:
            leader.bind(("127.0.0.1", 0))
            where = Rendezvous(host="127.0.0.1", port=leader.getsockname()[1])
            async with running(tmp_path) as node:
                await node.supervisor.start(
                    make_spec(rank=1, nodes=2, rendezvous=where, rendezvous_timeout_s=0.3)
                )
                failed = await node.reach("failed")
                assert failed.reason is not None
                assert "did not open its rendezvous port" in failed.reason
                assert failed.engine_pid is None

    run(test)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": ["GPU-9"]}, "GPU GPU-9 is not on this node"),
        ({"gpus": ["GPU-0", "GPU-0"]}, "named twice"),
        ({"args": ["impossible"]}, "asks for the impossible"),
        ({"engine": "unheard-of"}, "no engine is called 'unheard-of'"),
        ({"nodes": 2, "fabric": "ib-z"}, "fabric ib-z is not declared on this node, which has ib-a"),
        ({"rank": 1, "nodes": 2}, "without its leader's address"),
        ({"args": ["no-such-program"]}, "engine could not be started: /nonexistent/engine"),
        ({"shard_id": "../../etc"}, "is not a shard id"),
    ],
)
def test_what_cannot_run_here_is_held_as_failed_with_a_sentence(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            spec = make_spec(**{"shard_id": "r1-0", **changes})  # type: ignore[arg-type]
            await node.supervisor.start(spec)
            failed = await node.reach("failed", spec.shard_id)
            assert words in (failed.reason or "")
            assert node.told

    run(test)


def test_a_gpu_is_given_to_one_shard_at_a_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("a", gpus=["GPU-0", "GPU-1"]))
            await node.supervisor.start(make_spec("b", gpus=["GPU-1"]))
            refused = await held_one(node.supervisor, "b")
            assert refused.phase == "failed"
            assert "GPU GPU-1 is held by shard a" in (refused.reason or "")
            await node.supervisor.stop("a", "room")
            await node.reach("stopped", "a")
            await node.supervisor.start(make_spec("c", gpus=["GPU-1"]))
            await node.reach("ready", "c")

    run(test)


def bound(other: socket.socket, port: int) -> bool:
    try:
        other.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_a_port_that_somebody_listens_on_is_passed_over(tmp_path: Path) -> None:
    async def test() -> None:
        with socket.socket() as other:
            # Below the ports that the kernel hands out, so that the neighbour is not taken by a connection.
            low = next(
                port for port in range(20000, 30000, 2) if is_free("127.0.0.1", port + 1) and bound(other, port)
            )
            taken = low
            other.listen()
            async with running(tmp_path) as node:
                supervisor = make_supervisor(make_config(tmp_path / "b", port_range=f"{low}-{low + 1}"))
                await supervisor.start(make_spec("a"))
                await supervisor.start(make_spec("b"))
                first, second = await held_one(supervisor, "a"), await held_one(supervisor, "b")
                assert first.http_port != taken
                assert second.phase == "failed"
                assert "widen supervisor.port_range" in (second.reason or "")
                await supervisor.stop("a", "end")
                await Running(supervisor, tmp_path).reach("stopped", "a")
                await supervisor.close()
                assert node.told == []

    run(test)


def test_a_stop_of_an_unknown_shard_is_answered_with_stopped(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.stop("gone", "surplus")
            shard = await held_one(node.supervisor, "gone")
            assert shard.phase == "stopped"
            await node.supervisor.forget(["gone"])
            assert await node.supervisor.held() == []

    run(test)


def test_output_is_read_by_lines_and_by_offset_and_stays_after_the_server_forgot(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", "dies"))
            await node.reach("failed")
            await node.supervisor.forget(["r1-0"])

            async def read(stream: str, offset: int | None, shard_id: str = "r1-0") -> object:
                return await node.supervisor.read_log(
                    request_id="q", shard_id=shard_id, stream=stream, offset=offset, lines=1
                )

            last = await read("engine", None)
            assert (last.text, last.offset) == ("CUDA error: out of memory\n", 14)  # type: ignore[attr-defined]
            assert last.streams == ["engine"]  # type: ignore[attr-defined]
            rest = await read("engine", 7)
            assert rest.text.startswith("begins\n")  # type: ignore[attr-defined]
            assert "not the name of" in (await read("../../etc/passwd", None)).error  # type: ignore[attr-defined]
            assert "this shard has engine" in (await read("sidecar", None)).error  # type: ignore[attr-defined]
            assert "holds no shard" in (await read("engine", None, "..")).error  # type: ignore[attr-defined]

    run(test)


def test_ended_shards_are_kept_within_a_bound(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            for number in range(60):
                await node.supervisor.start(make_spec(f"s{number}", "impossible"))
            held = await node.supervisor.held()
            assert len(held) == 50
            assert held[-1].spec.shard_id == "s59"

    run(test)
