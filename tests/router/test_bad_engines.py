"""Engines that answer what is no answer: the client gets a sentence, another engine, or a cut, and never half."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time

import pytest

from tests.patience import PATIENCE
from tests.router.support import EVENT_STREAM, Fleet, Script, model, plain, post, raw

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


def endless(head: bytes, part: bytes, written: list[int]) -> Script:
    """Writes `part` for as long as somebody reads."""

    async def script(seen, reader, writer) -> None:
        writer.write(head)
        while True:
            writer.write(part)
            await writer.drain()
            written[0] += len(part)

    return script


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (b"<html>I speak HTTP/0.9</html>\n", "does not begin with HTTP/1.1"),
        (b"HTTP/2 200\r\n\r\n", "not with a status line of HTTP/1.1"),
        (CHUNKED + b"8000000000000000\r\nx", "a chunk size that is none"),
        (CHUNKED + b"-1\r\nx", "a chunk size that is none"),
        (OK + b"content-encoding: gzip\r\ncontent-length: 20\r\n\r\n\x1f\x8b\x08", "which nobody asked for"),
        (OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", "sent the content-length"),
        (OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "sent the transfer-encoding"),
        (OK + b"x: 1\r\n folded\r\n\r\n", "a header line that is none"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n", "switched protocols"),
        (b"", "closed the connection before it answered"),
        (OK, "closed the connection in the middle of its answer"),
    ],
    ids=lambda value: repr(value[:45]) if isinstance(value, bytes) else None,
)
def test_what_is_no_answer_is_asked_of_another_or_said(play, wire: bytes, said: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        bad, good = await fleet.serve(raw(wire, close=True), plain(b"good"))
        await fleet.route(model("m", bad))
        answer = await fleet.ask(post())
        assert answer.status == 502
        error = json.loads(answer.body)["error"]
        assert said in error["message"]
        assert "m-0" in error["message"]
        assert (error["type"], error["code"]) == ("server_error", "engine_failed")
        await fleet.route(model("m", bad, good))
        assert {(await fleet.ask(post())).body for _ in range(8)} == {b"good"}

    play(scenario)


@pytest.mark.parametrize(
    ("head", "part", "said"),
    [
        (OK, b"x: " + b"a" * 65536 + b"\r\n", "head that exceeds 65536 bytes"),
        (OK + b"x: ", b"a" * 65536, "head that exceeds 65536 bytes"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, "interim answers"),
    ],
    ids=["headers", "one header", "interim answers"],
)
def test_an_endless_head_is_not_read_to_its_end(play, head: bytes, part: bytes, said: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        written = [0]
        before = fleet.router.rss_mib()
        await fleet.serve(endless(head, part, written))
        answer = await fleet.ask(post())
        assert answer.status == 502
        assert said in json.loads(answer.body)["error"]["message"]
        assert written[0] < 32 * 1024**2, "what the sockets between hold"
        assert fleet.router.rss_mib() - before < 10

    play(scenario)


@pytest.mark.parametrize(
    "head", [b"", OK, OK + b"content-length: 10\r\n\r\n", CHUNKED, CHUNKED + b"5\r", OK + EVENT_STREAM + b"\r\n"]
)
def test_an_engine_that_begins_and_then_says_nothing_is_given_up_in_time(play, head: bytes) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def script(seen, reader, writer) -> None:
            writer.write(head)
            await reader.read()
            seen.closed.set()
            writer.close()

        (engine,) = await fleet.serve(script, first_byte_timeout_s=0.3)
        started_at = time.monotonic()
        answer = await fleet.ask(post())
        assert answer.status == 504
        assert "no byte of an answer within 0.3 s" in json.loads(answer.body)["error"]["message"]
        assert time.monotonic() - started_at < 3
        await asyncio.wait_for(engine.requests[0].closed.wait(), 5 * PATIENCE)

    play(scenario)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("head", [OK + b"\r\n", CHUNKED + b"5\r\n"], ids=["until close", "chunked"])
def test_a_body_that_only_its_close_would_end_is_reset_when_it_breaks(play, head: bytes, version: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def script(seen, reader, writer) -> None:
            writer.write(head + b"abc")
            await asyncio.sleep(0.02)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        await fleet.serve(script)
        client = await fleet.client()
        client.send(post(version=version))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.answer()

    play(scenario)


def test_a_compressed_answer_is_not_asked_for(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(headers=b"content-encoding: identity\r\n"))
        answer = await fleet.ask(post(headers=b"accept-encoding: gzip, br\r\n"))
        assert answer.status == 200
        assert "accept-encoding" not in engine.requests[0].headers

    play(scenario)


def test_bytes_behind_an_answer_are_nobodys_answer(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        poison = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
        (engine,) = await fleet.serve(raw(OK + b"content-length: 4\r\n\r\ngood" + poison))
        client = await fleet.client()
        for _ in range(3):
            client.send(post())
            assert (await client.answer()).body == b"good"
        assert engine.connections == 3

        async def later(seen, reader, writer) -> None:
            writer.write(OK + b"content-length: 4\r\n\r\ngood")
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(poison)
            await reader.read()
            seen.closed.set()
            writer.close()

        engine.script = later
        for _ in range(3):
            client.send(post())
            assert (await client.answer()).body == b"good"
            await asyncio.wait_for(engine.requests[-1].closed.wait(), 5 * PATIENCE)

    play(scenario)


def test_what_speaks_before_it_is_asked_is_no_engine(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        await fleet.route(model("m", server.sockets[0].getsockname()[1]))
        for _ in range(20):
            assert (await fleet.ask(post())).status == 502
        await fleet.outcome()
        assert all("m-0" in str(outcome.error) for outcome in fleet.outcomes)
        server.close()

    play(scenario)


def test_an_engine_that_answers_and_leaves_the_request_unread_keeps_nothing_of_it(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        closed = asyncio.Event()

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 X\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nno")
            while reader.exception() is None:  # only the connection's end is looked for, nothing is read
                try:
                    writer.write(b" ")
                    await writer.drain()
                except ConnectionError:
                    break
                await asyncio.sleep(0.01)
            closed.set()
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1024)
        await fleet.route(model("m", server.sockets[0].getsockname()[1]))
        answer = await fleet.ask(post(b'{"model":"m","x":"%b"}' % (b"y" * 8_000_000)))
        assert answer.status == 413
        await asyncio.wait_for(closed.wait(), 5 * PATIENCE)
        server.close()

    play(scenario)
