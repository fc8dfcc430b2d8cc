"""What is written at the end of the event loop's turn: together, in order, and by no connection that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from llmgw.messages.routes import RouteEndpoint
from llmgw.router.endpoint import Endpoint
from llmgw.router.late import AT_ONCE_MAX, LateWrites
from llmgw.router.limits import Limits
from llmgw.router.response_head import ResponseHead
from llmgw.router.upstream import UpstreamConnection
from tests.router.fuzz.world import FuzzLoop, Pipe, World

REQUEST = b'POST /v1/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 13\r\n\r\n{"model":"m"}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Writer:
    def __init__(self, written: list[int], number: int, *, fails: bool = False) -> None:
        self._written, self._number, self._fails = written, number, fails

    def flush(self) -> None:
        if self._fails:
            raise OSError("no")
        self._written.append(self._number)


class Sink:
    """Who waits for an answer."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def upstream_head(self, head: ResponseHead) -> bool:
        self.told.append(head.status)
        return False

    def upstream_data(self, data: bytes, done: bool, now: float) -> None:
        self.told.append(data)

    def upstream_lost(self, reason: str) -> None:
        self.told.append(reason)


def played(scenario: Callable[[FuzzLoop], Coroutine[Any, Any, None]]) -> None:
    loop = FuzzLoop()
    try:
        loop.play(scenario(loop))
    finally:
        loop.close()


def test_all_of_a_turn_are_written_behind_it_and_one_that_fails_takes_none_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(loop: FuzzLoop) -> None:
        late = LateWrites(loop)
        written: list[int] = []
        for number in range(5):
            late.add(Writer(written, number, fails=number == 2))
        assert not written
        await asyncio.sleep(0)
        assert written == [0, 1, 3, 4]
        assert "could not be written" in caplog.text
        late.add(Writer(written, 9))
        await asyncio.sleep(0)
        assert written == [0, 1, 3, 4, 9]

    played(scenario)


def test_in_a_long_turn_the_first_do_not_wait_for_the_last() -> None:
    async def scenario(loop: FuzzLoop) -> None:
        late = LateWrites(loop)
        written: list[int] = []
        for number in range(AT_ONCE_MAX + 1):
            late.add(Writer(written, number))
        assert written == list(range(AT_ONCE_MAX))
        await asyncio.sleep(0)
        assert written == list(range(AT_ONCE_MAX + 1))

    played(scenario)


def connected(loop: asyncio.AbstractEventLoop) -> tuple[UpstreamConnection, Pipe, Sink]:
    route = RouteEndpoint(id="e", host="192.0.2.2", port=1)
    connection = UpstreamConnection(Endpoint(route, idle_limit_s=4.0))
    return connection, Pipe(loop, connection), Sink()


def test_what_an_engine_sends_before_it_has_the_request_is_no_answer_to_it() -> None:
    async def scenario(loop: FuzzLoop) -> None:
        connection, pipe, sink = connected(loop)
        connection.send(sink, (REQUEST[:10], REQUEST[10:]), b"", LateWrites(loop))
        pipe.arrive(ANSWER)
        await asyncio.sleep(0)
        assert sink.told == ["sent bytes before it was asked"]
        assert (pipe.out, pipe.aborted) == (b"", True)

    played(scenario)


def test_a_connection_that_was_given_up_writes_nothing_any_more() -> None:
    async def scenario(loop: FuzzLoop) -> None:
        connection, pipe, sink = connected(loop)
        connection.send(sink, (REQUEST,), b"", LateWrites(loop))
        connection.abandon()
        await asyncio.sleep(0)
        assert pipe.out == b""
        connection, pipe, sink = connected(loop)
        connection.send(sink, (REQUEST,), b"", LateWrites(loop))
        pipe.reset()
        await asyncio.sleep(0)
        assert pipe.out == b""

    played(scenario)


@pytest.mark.parametrize("ends", ["close", "half", "nothing"])
def test_an_answer_is_written_before_its_connection_ends(ends: str) -> None:
    async def scenario(loop: FuzzLoop) -> None:
        world = World(loop, Limits())
        closing = b"connection: close\r\n" if ends == "close" else b""
        world.pipe.arrive(REQUEST.replace(b"host: gw\r\n", b"host: gw\r\n" + closing))
        await world.settle()
        (engine,) = world.engines
        assert engine.out.endswith(b'{"model":"m"}')
        engine.arrive(ANSWER)
        if ends == "half":
            world.pipe.arrive(None)
        await world.settle()
        assert world.pipe.out.startswith(b"HTTP/1.1 200 OK\r\n")
        assert world.pipe.out.endswith(b"\r\n\r\n{}")
        assert world.pipe.ended == (ends != "nothing")

    played(scenario)


def test_what_is_read_in_one_turn_is_sent_behind_it_in_order() -> None:
    async def scenario(loop: FuzzLoop) -> None:
        world = World(loop, Limits())
        world.pipe.arrive(REQUEST)
        await world.settle()
        (engine,) = world.engines
        engine.arrive(ANSWER)
        assert world.pipe.out == b"", "it waits for the end of the turn"
        wrong = b"GET /nothing HTTP/1.1\r\nhost: gw\r\n\r\n"
        world.pipe.arrive(wrong)
        before, _, behind = world.pipe.out.partition(b"\r\n\r\n{}")
        assert before.startswith(b"HTTP/1.1 200 OK\r\n")
        assert behind.startswith(b"HTTP/1.1 404 "), "what is written at once comes behind it all the same"

    played(scenario)


@pytest.mark.parametrize("ending", [None, b"SSH-2.0-x\r\n"], ids=["closes", "speaks"])
def test_an_engine_that_ends_a_connection_before_it_is_asked_has_not_had_the_request(
    ending: bytes | None,
) -> None:
    async def scenario(loop: FuzzLoop) -> None:
        world = World(loop, Limits(), engines=3)
        world.dial = lambda pipe: pipe.arrive(ending) if len(world.engines) < 3 else None
        world.pipe.arrive(REQUEST)
        await world.settle()
        *ended, third = world.engines
        assert [engine.out for engine in ended] == [b"", b""]
        assert third.out.endswith(b'{"model":"m"}'), "two that died on it would have been the last"

    played(scenario)
