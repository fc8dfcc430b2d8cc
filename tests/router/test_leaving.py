"""A client that leaves ends its engine's work at once, whatever the engine was doing."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from tests.router.support import EVENT_STREAM, Fleet, chunk, fleet_of, hang, model, plain, post, until

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
        await asyncio.wait_for(engine.requests[0].closed.wait(), 5)
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
        await asyncio.wait_for(engine.requests[0].closed.wait(), 5)
        outcome = await fleet.outcome()
        assert outcome.status == 499
        assert outcome.first_byte_s is not None

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
        await asyncio.wait_for(engine.requests[0].closed.wait(), 5)
        engine.script = plain(b"good")
        assert (await fleet.ask(post())).body == b"good"

    play(scenario)
