"""Connections to engines: kept alive between requests, each following the framing of one answer at a time."""

from __future__ import annotations

import asyncio
import errno
import ssl
from time import monotonic
from typing import Protocol, cast

from llmgw.router.endpoint import Endpoint
from llmgw.router.late import LateWrites
from llmgw.router.limits import UPSTREAM_IDLE_CONNECTIONS_MAX
from llmgw.router.response_head import BadResponse, ResponseHead
from llmgw.router.response_parser import ResponseParser

# Head and body go out in one write up to this size; beyond it, joining them costs more than a second write.
_JOINED_BYTES_MAX = 16 * 1024


# No descriptors or memory left: the endpoint is not to blame.
OUR_OWN_ERRORS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class AnswerSink(Protocol):
    """Who waits for the answer: an exchange."""

    def upstream_head(self, head: ResponseHead) -> bool:
        """A final head has come, body bytes not yet. True: not wanted, the connection is to be cut."""

    def upstream_data(self, data: bytes, done: bool, now: float) -> None:
        """Body bytes as they came; `done` with the last of them (which may be none)."""

    def upstream_lost(self, reason: str) -> None:
        """The answer ended before its end. `reason` reads on from "the engine"."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to one endpoint. Idle ones stand in `endpoint.idle`, most recently used last."""

    __slots__ = (
        "_abandoned",
        "_late",
        "_paused",
        "_sink",
        "endpoint",
        "idle_since",
        "parser",
        "reused",
        "transport",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.parser = ResponseParser()
        self.transport: asyncio.Transport | None = None
        self.reused = False
        self.idle_since = 0.0
        self._sink: AnswerSink | None = None
        self._late = b""
        """A request that is to be written."""
        self._abandoned = False
        self._paused = False

    def send(self, sink: AnswerSink, head: tuple[bytes, ...], body: bytes, late: LateWrites) -> None:
        """Write a request, whose head is in parts; its answer goes to `sink`."""
        transport = self.transport
        assert transport is not None
        self._sink = sink
        if len(body) <= _JOINED_BYTES_MAX:
            self._late = b"".join((*head, body))
            late.add(self)
        else:
            transport.write(b"".join(head))
            transport.write(memoryview(body))  # what is not taken at once is not copied

    def flush(self) -> None:
        late, self._late = self._late, b""
        if late and self.transport is not None and not self.transport.is_closing():
            self.transport.write(late)

    def abandon(self) -> None:
        """Nobody wants the answer any more, or the connection at all: the engine sees it closed at once."""
        self._sink = None
        self._late = b""
        self._abandoned = True
        if self.transport is not None:
            self.transport.abort()

    def pause_reading(self) -> None:
        """Hold the engine back. Nothing happens once the answer is whole: an idle connection must be read."""
        if self._sink is not None and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._abandoned:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            # Bytes that nobody asked for: whatever follows could be taken for another request's answer.
            self.abandon()
            return
        if self._late:
            # What came before the request was written is no answer to it.
            self.abandon()
            sink.upstream_lost("sent bytes before it was asked")
            return
        parser = self.parser
        headless = parser.head is None
        try:
            body = parser.feed_head(data) if headless else parser.feed(data)
        except BadResponse as error:
            self.abandon()
            sink.upstream_lost(str(error))
            return
        if headless:
            head = parser.head
            if head is None or sink.upstream_head(head):
                return
        if parser.done:
            self._sink = None
            now = monotonic()
            self._release(parser, now)
            sink.upstream_data(body, True, now)
        elif body:
            sink.upstream_data(body, False, monotonic())

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        sink = self._sink
        self._sink = None
        self._late = b""
        if sink is None:
            try:
                self.endpoint.idle.remove(self)
            except ValueError:
                pass
        elif exc is None and self.parser.close():
            sink.upstream_data(b"", True, monotonic())
        else:
            how = "closed" if exc is None else "reset"
            when = "in the middle of its answer" if self.parser.received else "before it answered"
            sink.upstream_lost(f"{how} the connection {when}")

    def _release(self, parser: ResponseParser, now: float) -> None:
        """The answer is whole: keep the connection for another request, or close it."""
        transport, endpoint, head = self.transport, self.endpoint, parser.head
        assert transport is not None
        idle = endpoint.idle
        if transport.get_write_buffer_size():
            # It answered before it had read the request, and perhaps never will: the rest would be kept for it.
            transport.abort()
            return
        if (
            not parser.reusable()
            or endpoint.retired
            or len(idle) >= UPSTREAM_IDLE_CONNECTIONS_MAX
            or transport.is_closing()
        ):
            transport.close()
            return
        if head is not None and head.keep_alive_s is not None:
            endpoint.idle_limit_s = min(max(head.keep_alive_s - 1.0, 0.0), 60.0)
        parser.reset()
        if self._paused:
            self.resume_reading()
        self.idle_since = now
        idle.append(self)


def take_idle(endpoint: Endpoint, now: float) -> UpstreamConnection | None:
    """The most recently used idle connection that the engine should not have closed yet."""
    while endpoint.idle:
        connection = endpoint.idle.pop()
        transport = connection.transport
        if transport is None or transport.is_closing():
            continue
        if now - connection.idle_since >= endpoint.idle_limit_s:
            connection.abandon()
            continue
        connection.reused = True
        return connection
    return None


def close_idle(endpoint: Endpoint, now: float) -> None:
    """Close what has been idle too long, or everything of an endpoint that is not routed to any more."""
    idle = endpoint.idle
    while idle and (endpoint.retired or now - idle[0].idle_since >= endpoint.idle_limit_s):
        idle.pop(0).abandon()


async def dial(connection: UpstreamConnection, timeout_s: float, context: ssl.SSLContext | None) -> None:
    """Connect, with TLS where the route says so. Raises OSError (TLS failures are such) or TimeoutError.

    What has ended again by then raises OSError too: nobody was told, since nothing was asked over it yet.
    """
    route = connection.endpoint.route
    async with asyncio.timeout(timeout_s):
        await asyncio.get_running_loop().create_connection(
            lambda: connection,
            route.host,
            route.port,
            ssl=context,
            server_hostname=route.host if context is not None else None,
        )
    if connection.transport is None or connection.transport.is_closing():
        raise ConnectionAbortedError("it ended, or bytes came over it, before anything was asked")
