"""A client that leaves ends its engine's work at once, whatever the engine was doing."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time

import pytest

from tests.patience import PATIENCE
from tests.router.support import EVENT_STREAM, Fleet, Seen, chunk, fleet_of, hang, model, plain, post, until

STREAM = b'{"model":"m","stream":true}'


@pytest.mark.parametrize("body", [STREAM, b'{"model":"m"}'], ids=["stream", "plain"])
@pytest.mark.parametrize("how", ["close", "abort"])
def test_before_the_first_byte(play, body: bytes, how: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(hang)
        client = await fleet.client()
        client.send(post(body))
        await until(lambda: engine.requests, "the engine has the request")
        left_at = time.monotonic()
        client.writer.close() if how == "close" else client.writer.transport.abort()
        await asyncio.wait_for(engine.requests[0].closed.wait(), 5 * PATIENCE)
        assert time.monotonic() - left_at < 1
        outcome = await fleet.outcome()
        assert (outcome.status, outcome.endpoint) == (499, "m-0")
        await until(lambda: not fleet.in_flight, "nothing is in flight")

    play(scenario)


def test_in_the_middle_of_a_stream(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def forever(seen, reader, writer) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n")
            try:
                while True:
                    writer.write(chunk(b"data: x\n\n"))
                    await writer.drain()
                    await asyncio.sleep(0.005)
            finally:
                seen.closed.set()

        (engine,) = await fleet.serve(forever)
        client = await fleet.client()
        client.send(post(STREAM))
        await client.head()
        await client.reader.readexactly(20)
        client.writer.close()
        await asyncio.wait_for(engine.requests[0].closed.wait(), 5 * PATIENCE)
        outcome = await fleet.outcome()
        assert outcome.status == 499
        assert outcome.first_byte_s is not None

    play(scenario)


async def leave_many(fleet: Fleet, times: int, at_once: int = 10) -> dict[str, list[float]]:
    """Have clients leave in each phase, `times` in all: phase → seconds until the engine saw it, each time."""
    closed_at: dict[str, float] = {}
    asked: dict[str, asyncio.Event] = {}

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "mid-stream" in seen.headers["x-phase"]:
            writer.write(b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n")
            writer.write(chunk(b"data: x\n\n"))
        asked[seen.headers["x-phase"]].set()
        assert await reader.read() == b""
        closed_at[seen.headers["x-phase"]] = time.monotonic()
        writer.close()

    await fleet.serve(script)
    took: dict[str, list[float]] = {"mid-stream": [], "before the first chunk": [], "not streamed": []}

    async def leave(number: int, phase: str) -> None:
        name = f"{phase} {number}"
        asked[name] = asyncio.Event()
        client = await fleet.client()
        body = b'{"model":"m"}' if phase == "not streamed" else STREAM
        client.send(post(body, headers=b"x-phase: %b\r\n" % name.encode()))
        await asyncio.wait_for(asked[name].wait(), 5 * PATIENCE)
        if phase == "mid-stream":
            await client.reader.readuntil(b"data: x\n\n")
        left_at = time.monotonic()
        client.writer.transport.abort() if number % 2 else client.close()
        await until(lambda: name in closed_at, f"the engine sees that {name} left")
        took[phase].append(closed_at[name] - left_at)

    phases = [list(took)[number % 3] for number in range(times)]
    for start in range(0, times, at_once):
        batch = enumerate(phases[start : start + at_once], start)
        await asyncio.gather(*(leave(number, phase) for number, phase in batch))
    return took


def test_of_many_that_leave_none_is_missed(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        took = await leave_many(fleet, 210)
        assert [len(each) for each in took.values()] == [70, 70, 70]
        assert sorted(itertools.chain(*took.values()))[200] < 0.05
        await until(lambda: len(fleet.outcomes) == 210, "all are counted")
        assert {outcome.status for outcome in fleet.outcomes} == {499}
        await until(lambda: not fleet.in_flight, "nothing is in flight")

    play(scenario)


def test_while_the_engine_is_being_connected(new_router) -> None:
    async def main() -> None:
        router = await new_router("--connect-timeout-s=30").serving()
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:  # the queue is full: further connections wait for an answer
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            async with fleet_of(router) as fleet:
                await fleet.route(model("m", port))
                client = await fleet.client()
                client.send(post())
                await until(lambda: fleet.in_flight == {"m-0": 1}, "the router is connecting")
                client.writer.transport.abort()
                outcome = await fleet.outcome()
                assert (outcome.status, outcome.endpoint) == (499, "m-0")
                await until(lambda: not fleet.in_flight, "nothing is in flight")
            for filler in fillers:
                filler.close()

    asyncio.run(main())


def test_an_engine_that_writes_to_nobody_does_not_hurt_the_next_request(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(hang)
        client = await fleet.client()
        client.send(post())
        await until(lambda: engine.requests, "the engine has the request")
        client.writer.close()
        await asyncio.wait_for(engine.requests[0].closed.wait(), 5 * PATIENCE)
        engine.script = plain(b"good")
        assert (await fleet.ask(post())).body == b"good"

    play(scenario)
