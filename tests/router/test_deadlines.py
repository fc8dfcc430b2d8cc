"""Answers that stand still or take too long end loudly, slow ones do not."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.patience import PATIENCE
from tests.router.support import EVENT_STREAM, Fleet, Seen, chunk, hang, plain, post, until

CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"
STREAM = b'{"model":"m","stream":true}'


def begins_and_hangs(head: bytes, *parts: bytes):
    async def script(seen: Seen, reader, writer) -> None:
        writer.write(head)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)
        await hang(seen, reader, writer)

    return script


def last_error(body: bytes) -> dict[str, str]:
    events = [event.strip() for event in body.split(b"\n\n") if event.strip()]
    error = json.loads(events[-1].removeprefix(b"data: "))["error"]
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("part", [b"", chunk(b"data: 2\n\n"), b"40\r\ndata: {", b"9\r\ndata: 2\n"])
def test_a_stream_that_stands_still_ends_with_an_error_event(play, part: bytes) -> None:
    async def scenario(fleet: Fleet) -> None:
        script = begins_and_hangs(CHUNKED_HEAD, chunk(b"data: 1\n\n"), *[part] * bool(part))
        (engine,) = await fleet.serve(script, chunk_timeout_s=0.3)
        answer = await fleet.ask(post(STREAM))
        assert answer.body.startswith(b"data: 1\n\n")
        error = last_error(answer.body)
        assert error["code"] == "stream_broken"
        assert "the engine m-0 sent nothing more within 0.3 s" in error["message"]
        await asyncio.wait_for(engine.requests[0].closed.wait(), 5 * PATIENCE)
        outcome = await fleet.outcome()
        assert (outcome.status, outcome.retries) == (502, 0)

    play(scenario)


def test_any_other_answer_that_stands_still_is_cut(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"
        await fleet.serve(begins_and_hangs(head, b"abc"), chunk_timeout_s=0.3)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await fleet.ask(post())
        assert (await fleet.outcome()).status == 502

    play(scenario)


def test_a_stream_that_is_slow_but_goes_on_is_never_broken_off(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def slowly(seen: Seen, reader, writer) -> None:
            writer.write(CHUNKED_HEAD)
            for _ in range(12):
                writer.write(chunk(b"data: 1\n\n"))
                await writer.drain()
                await asyncio.sleep(0.1)
            writer.write(b"0\r\n\r\n")

        await fleet.serve(slowly, chunk_timeout_s=0.6)
        answer = await fleet.ask(post(STREAM))
        assert answer.body == b"data: 1\n\n" * 12
        assert (await fleet.outcome()).total_s > 1.0

    play(scenario)


def test_a_client_that_reads_slowly_is_not_held_against_the_engine(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        block = chunk(b"x" * 65536)

        async def much(seen: Seen, reader, writer) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(400):
                writer.write(block)
                await writer.drain()
            writer.write(b"0\r\n\r\n")

        await fleet.serve(much, chunk_timeout_s=0.3)
        client = await fleet.client()
        client.writer.transport.pause_reading()
        client.send(post(headers=b"connection: close\r\n"))
        await asyncio.sleep(1.2)  # four times what an engine may be silent
        client.writer.transport.resume_reading()
        await client.head()
        assert len(await client.rest()) == 400 * len(block) + 5
        assert (await fleet.outcome()).status == 200

    play(scenario)


def test_a_request_that_takes_too_long_is_refused_without_trying_another_engine(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engines = await fleet.serve(hang, hang, request_timeout_s=0.4)
        answer = await fleet.ask(post())
        assert answer.status == 504
        error = json.loads(answer.body)["error"]
        assert error["code"] == "request_timeout"
        assert "0.4 s" in error["message"]
        assert sum(len(engine.requests) for engine in engines) == 1
        asked = next(engine for engine in engines if engine.requests)
        await asyncio.wait_for(asked.requests[0].closed.wait(), 5 * PATIENCE)
        await until(lambda: not fleet.in_flight, "nothing is in flight")
        outcome = await fleet.outcome()
        assert (outcome.status, outcome.retries) == (504, 0)

    play(scenario)


def test_a_stream_that_takes_too_long_ends_with_an_error_event_and_its_engine_is_not_blamed(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def forever(seen: Seen, reader, writer) -> None:
            writer.write(CHUNKED_HEAD)
            while not writer.is_closing():
                writer.write(chunk(b"data: 1\n\n"))
                await writer.drain()
                await asyncio.sleep(0.02)

        (engine,) = await fleet.serve(forever, request_timeout_s=0.4)
        client = await fleet.client()
        for _ in range(4):
            answer = await fleet.ask(post(STREAM))
            assert answer.body.startswith(b"data: 1\n\n")
            error = last_error(answer.body)
            assert "request_timeout of 0.4 s" in error["message"]
        assert not any(frame.breakers for frame in fleet.telemetry)
        engine.script = plain(b"good")
        client.send(post())
        assert (await client.answer()).body == b"good"

    play(scenario)


def test_the_limits_of_a_request_do_not_outlive_it_on_its_connection(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain(b"good"), chunk_timeout_s=0.3, request_timeout_s=0.4)
        client = await fleet.client()
        client.send(post())
        assert (await client.answer()).body == b"good"
        await asyncio.sleep(1.0)  # longer than any of them
        client.send(post())
        assert (await client.answer()).body == b"good"

    play(scenario)
