"""Clients that are slow, on purpose or not: each waits alone, in bounded memory, and not for ever."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.router.support import EVENT_STREAM, Fleet, chunk, fleet_of, plain, post, until

BLOCK = chunk(b"x" * 65536)


async def endless(seen, reader, writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    try:
        while True:
            writer.write(BLOCK)
            await writer.drain()
    finally:
        seen.closed.set()


def test_many_slow_readers_of_endless_streams_hold_little_each(play) -> None:
    """64 KiB of high water and the read that passed it: 256 KiB by uvloop."""
    clients_n = 60

    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(endless)
        before = fleet.router.rss_mib()
        clients = [await fleet.client() for _ in range(clients_n)]
        for client in clients:
            client.writer.transport.pause_reading()
            client.send(post())
        await until(lambda: fleet.in_flight == {"m-0": clients_n}, "all stream")

        def grown() -> float:
            return fleet.router.rss_mib() - before

        last = -1.0
        while abs(grown() - last) > 0.1:  # until all buffers on the way are full
            last = grown()
            await asyncio.sleep(0.3)
        for client in clients[::2]:  # those that read a little now and then hold no more
            client.writer.transport.resume_reading()
            await client.reader.readexactly(1 << 20)
            client.writer.transport.pause_reading()
        await asyncio.sleep(0.2)
        assert grown() < clients_n * 0.35 + 3
        # In the meantime others are served.
        started_at = time.monotonic()
        other = await fleet.client()
        other.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
        assert (await other.answer()).status == 200
        assert time.monotonic() - started_at < 1

    play(scenario)


def test_a_client_that_takes_nothing_of_its_answer_is_cut(new_router) -> None:
    async def main() -> None:
        async with fleet_of(new_router("--stall-timeout-s=0.5")) as fleet:
            (engine,) = await fleet.serve(endless)
            client, reading = await fleet.client(), await fleet.client()
            client.send(post())
            client.writer.transport.pause_reading()
            reading.send(post())
            await until(lambda: len(engine.requests) == 2, "both stream")
            first, second = engine.requests

            async def read() -> None:
                async for _ in reading.reader:
                    pass

            task = asyncio.create_task(read())
            await asyncio.wait(
                {asyncio.create_task(seen.closed.wait()) for seen in (first, second)},
                timeout=8,
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert first.closed.is_set() != second.closed.is_set(), "the one that reads goes on"
            task.cancel()
            outcome = await fleet.outcome()
            assert outcome.status == 499

    asyncio.run(main())


@pytest.mark.parametrize(
    "begun",
    [
        post()[:-5],
        b'POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"m',
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\nexpect: 100-continue\r\ncontent-length: 13\r\n\r\n",
    ],
    ids=["length", "chunked", "expected"],
)
def test_a_body_that_stands_still_is_given_up(new_router, begun: bytes) -> None:
    async def main() -> None:
        async with fleet_of(new_router("--body-idle-timeout-s=0.4")) as fleet:
            (engine,) = await fleet.serve(plain())
            client = await fleet.client()
            client.send(begun)
            answer = await client.answer()
            if answer.status == 100:
                answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (408, "close")
            assert b"did not arrive in time" in answer.body
            await client.ended()
            assert not engine.requests

    asyncio.run(main())


def test_a_body_that_comes_slowly_but_steadily_is_waited_for(new_router) -> None:
    async def main() -> None:
        async with fleet_of(new_router("--body-idle-timeout-s=0.5", "--header-timeout-s=0.5")) as fleet:
            (engine,) = await fleet.serve(plain(b"good"))
            client = await fleet.client()
            request = post(b'{"model":"m","x":"' + b"y" * 30 + b'"}')
            cut = request.index(b"{")
            client.send(request[:cut])
            for byte in request[cut:]:
                await asyncio.sleep(0.03)
                client.send(bytes([byte]))
            assert (await client.answer()).body == b"good"
            assert engine.requests[0].body == request[cut:]

    asyncio.run(main())


def test_a_second_head_that_drips_on_a_kept_connection_is_ended_in_time(new_router) -> None:
    async def main() -> None:
        async with fleet_of(new_router("--header-timeout-s=0.5")) as fleet:
            await fleet.serve(plain(b"good"))
            client = await fleet.client()
            client.send(post())
            assert (await client.answer()).body == b"good"
            started_at = time.monotonic()

            async def drip() -> None:
                for byte in post():
                    client.send(bytes([byte]))
                    await asyncio.sleep(0.05)

            dripping = asyncio.create_task(drip())
            assert (await client.answer()).status == 408
            assert time.monotonic() - started_at < 3
            dripping.cancel()

    asyncio.run(main())


def test_events_arrive_one_by_one_without_delay(play) -> None:
    """Nagle's rule and delayed acknowledgements would hold half of them for 40 ms."""

    async def scenario(fleet: Fleet) -> None:
        async def script(seen, reader, writer) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n")
            for _ in range(100):
                writer.write(chunk(b"data: %d\n\n" % time.monotonic_ns()))
                await asyncio.sleep(0.005)
            writer.write(b"0\r\n\r\n")

        await fleet.serve(script)
        client = await fleet.client()
        client.send(post())
        _, headers = await client.head()
        assert headers["x-accel-buffering"] == "no"
        late_s = []
        for _ in range(100):
            event = await client.reader.readuntil(b"\n\n")
            late_s.append((time.monotonic_ns() - int(event.split(b"data: ")[1])) / 1e9)
        assert sorted(late_s)[50] < 0.015

    play(scenario)
