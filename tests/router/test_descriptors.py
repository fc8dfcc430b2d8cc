"""When descriptors run out: who is served stays served, engines are not blamed, and it passes."""

from __future__ import annotations

import asyncio
import resource
import time

import psutil

from llmgw.router.limits import Limits
from tests.router.support import EVENT_STREAM, PROGRAM, Client, chunk, fleet_of, model, plain, post, until

HEALTH = b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n"


def with_files(limit: int) -> tuple[str, ...]:
    return ("bash", "-c", f'ulimit -n {limit}; exec "$@"', "-", *PROGRAM)


async def ticking(seen, reader, writer) -> None:
    """A stream that goes on until its client leaves."""
    writer.write(b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n")
    while not reader.at_eof():
        writer.write(chunk(b"data: x\n\n"))
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.close()


async def least_held(process: psutil.Process) -> int:
    """How many descriptors it always holds: not those of a file that it is just writing."""
    held = []
    for _ in range(30):
        held.append(process.num_fds())
        await asyncio.sleep(0.01)
    return min(held)


async def streams_on(client: Client) -> None:
    """More events arrive than the buffers can hold."""
    for _ in range(20):
        async with asyncio.timeout(5):
            await client.reader.readuntil(b"data: x\n\n")


def test_more_half_open_connections_than_descriptors_cost_nobody_who_is_served(new_router) -> None:
    async def main() -> None:
        router = await new_router("--header-timeout-s=2", program=with_files(256)).serving()
        async with fleet_of(router) as fleet:
            one, two = await fleet.engine(ticking), await fleet.engine(plain(b"good"))
            await fleet.route(model("m", one), model("n", two))
            stream, kept = await fleet.client(), await fleet.client()
            stream.send(post())
            await stream.head()
            kept.send(HEALTH)
            await kept.answer()
            half_open = await asyncio.gather(*(fleet.client() for _ in range(600)))
            for client in half_open[::2]:
                client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost:")
            await streams_on(stream)
            # An engine can still be connected to: descriptors are kept for that.
            kept.send(post(b'{"model":"n"}'))
            assert (await kept.answer()).body == b"good"
            answers = await asyncio.gather(*(client.rest() for client in half_open), return_exceptions=True)
            heard = [answer.split(b" ")[1] for answer in answers if isinstance(answer, bytes) and answer]
            assert set(heard) == {b"503", b"408"}, "too many, or too slow"
            assert (await fleet.ask(post(b'{"model":"n"}'))).body == b"good"
            await streams_on(stream)
            said = router.log_path.read_text()
            assert "may open 256 files, so it serves 80 connections instead of 10000" in said
            assert "clients wait" not in said

    asyncio.run(main())


def test_without_any_descriptor_left_nothing_spins_nothing_breaks_and_it_is_said_once(new_router) -> None:
    async def main() -> None:
        router = await new_router().serving()
        async with fleet_of(router) as fleet:
            stream_engine, engine = await fleet.engine(ticking), await fleet.engine(plain(b"good"))
            await fleet.route(model("m", stream_engine), model("n", engine))
            stream, kept = await fleet.client(), await fleet.client()
            stream.send(post())
            await stream.head()
            kept.send(HEALTH)
            await kept.answer()
            process = psutil.Process(router.process.pid)
            before = resource.prlimit(router.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(router.process.pid, resource.RLIMIT_NOFILE, (await least_held(process), before[1]))
            waiting = [await fleet.client() for _ in range(50)]
            for client in waiting:
                client.send(HEALTH)
            await until(lambda: "clients wait" in router.log_path.read_text(), "it is said")
            used = sum(process.cpu_times()[:2])
            started_at = time.monotonic()
            kept.send(post(b'{"model":"n"}'))
            answer = await kept.answer()
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert b"no room for more connections to engines" in answer.body
            while time.monotonic() - started_at < 1.5:
                await streams_on(stream)
            assert sum(process.cpu_times()[:2]) - used < 0.5
            resource.prlimit(router.process.pid, resource.RLIMIT_NOFILE, before)
            for client in waiting:
                assert (await client.answer()).status == 200
            kept.send(post(b'{"model":"n"}'))
            assert (await kept.answer()).body == b"good"
            await streams_on(stream)
            await until(lambda: len(fleet.outcomes) == 2, "both requests are told of")
            refused = [name for frame in fleet.telemetry for name in frame.refused]
            assert refused == [], "the engine is not to blame"
            assert router.log_path.read_text().count("clients wait") == 1
            assert router.log_path.read_text().count("engines cannot be reached") == 1

    asyncio.run(main())


def test_connections_stay_within_what_descriptors_are_for() -> None:
    for files in (16, 128, 256, 1024, 20_000, 1_000_000):
        limits = Limits(connections_max=10_000, files_max=files).share(2)
        assert 1 <= limits.connections_max <= 5000
        held = 2 * limits.connections_max + limits.overflow_connections_max
        assert held <= files or limits.connections_max == 1
    assert Limits(connections_max=10_000, files_max=20_000).share(1).connections_max == 9840
    assert Limits(connections_max=10_000).share(1).files_needed == 20_320


def test_idle_connections_to_engines_end_before_the_engines_would_end_them() -> None:
    from llmgw.router.limits import UPSTREAM_IDLE_S

    # uvicorn's default, which vLLM and SGLang leave as it is, and what nginx and cloud balancers keep.
    assert UPSTREAM_IDLE_S < 5 < 60 < Limits().idle_timeout_s
