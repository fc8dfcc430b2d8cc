"""One client's connection: HTTP/1.1 by llhttp, one request after the other, everything bounded.

A client that shuts its sending half counts as gone, as in nginx: nothing else tells a closed socket from it
until the answer is written, and an engine must not work for nobody.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import httptools

from llmgw.router.errors import ApiError, busy, render, too_large
from llmgw.router.limits import (
    DRAIN_FRESH_S,
    EARLY_BYTES_MAX,
    HEAD_BYTES_MAX,
    LINGER_S,
    OVERFLOW_CONNECTIONS_MAX,
    PIPELINED_MAX,
    SHORT_LINGER_S,
)
from llmgw.router.local import answer_locally, is_passed_on
from llmgw.router.request import Request

if TYPE_CHECKING:
    from llmgw.router.exchange import Exchange
    from llmgw.router.service import Service

log = logging.getLogger(__name__)
NEVER = math.inf
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """Reads requests, answers them in order, and tells the running exchange when the client pauses or leaves.

    `deadline` is the one time that matters now (head, body, idle, first byte, stall); the service sweeps it.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_closing",
        "_current",
        "_early",
        "_exchange",
        "_head_bytes",
        "_head_deadline_due",
        "_headers",
        "_in_head",
        "_parser",
        "_queue",
        "_refusing",
        "_request",
        "_served",
        "_service",
        "_serving",
        "_target",
        "deadline",
        "paused",
        "stall_deadline",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self._service = service
        self._parser: Any = httptools.HttpRequestParser(self)
        self._queue: deque[Request | ApiError] = deque()
        """Requests that were read and wait for their turn; an error is always the last."""
        self._current: Request | None = None
        """The request that is being answered."""
        self._exchange: Exchange | None = None
        """Its way through the engines, when it is passed on."""
        self._request: Request | None = None
        """The request whose body is being read."""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._in_head = False
        self._early = b""
        self._refusing = False
        """Whatever comes is thrown away: the connection ends with what is being answered."""
        self._closing = False
        self._served = 0
        self._serving = False
        self._head_deadline_due = False
        self.paused = False
        self.deadline = NEVER
        self.stall_deadline = NEVER

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        service = self._service
        service.clients.add(self)
        self.deadline = time.monotonic() + service.limits.header_timeout_s
        excess = len(service.clients) - service.limits.connections_max
        if excess > OVERFLOW_CONNECTIONS_MAX:
            self.cut()
        elif excess > 0:
            self._refuse(busy("This gateway has all the connections it can serve; try again."))

    def data_received(self, data: bytes) -> None:
        if self._refusing:
            return
        if self._current is not None:
            # Read on in spite of it: only a socket that is read tells that its client left.
            self._early += data
            if len(self._early) > EARLY_BYTES_MAX:
                self._refuse_input()
            return
        self._feed(data)
        self._serve()

    def eof_received(self) -> bool:
        if self._exchange is not None:
            self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        service = self._service
        service.clients.discard(self)
        self._refusing = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        self._drop_body()
        self._drop_queue()
        self._parser = None  # it refers back to this object

    def pause_writing(self) -> None:
        self.paused = True
        self.stall_deadline = time.monotonic() + self._service.limits.stall_timeout_s
        if self._exchange is not None:
            self._exchange.client_paused(True)

    def resume_writing(self) -> None:
        self.paused = False
        self.stall_deadline = NEVER
        if self._exchange is not None:
            self._exchange.client_paused(False)

    # What llhttp calls, within `_feed`.

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = []
        self._head_bytes = 0
        self._in_head = True
        self._drop_body()

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._refusing:
            return
        parser, service = self._parser, self._service
        if self._head_bytes + len(self._target) > HEAD_BYTES_MAX:
            self._refuse_parsed(_head_too_large())
            return
        try:
            request = Request(
                parser.get_method(),
                self._target,
                parser.get_http_version(),
                self._headers,
                keep_alive=parser.should_keep_alive(),
            )
            if request.content_length > service.limits.body_bytes_max:
                raise too_large(service.limits.body_bytes_max)
        except ApiError as error:
            self._refuse_parsed(error)
            return
        self._request = request
        if request.expects_continue and not self._queue:
            self.transport.write(_CONTINUE)

    def on_body(self, part: bytes) -> None:
        if self._refusing:
            return
        self._body.append(part)
        size = len(part)
        self._body_bytes += size
        service = self._service
        service.body_bytes_held += size
        if self._body_bytes > service.limits.body_bytes_max:
            self._refuse_parsed(too_large(service.limits.body_bytes_max))
        elif service.body_bytes_held > service.limits.bodies_bytes_max:
            self._refuse_parsed(busy("This gateway holds as many request bodies as it may; try again."))

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        if self._refusing or request is None or self._parser.should_upgrade():
            return
        body = self._body
        request.body = body[0] if len(body) == 1 else b"".join(body)
        self._body = []
        self._body_bytes = 0
        self._queue.append(request)
        if not request.keep_alive or len(self._queue) > PIPELINED_MAX:
            self._refuse_input()

    # Parsing.

    def _feed(self, data: bytes) -> None:
        began_in_head = self._in_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserCallbackError:
            log.exception("a request could not be handled")
            self._refuse_parsed(
                ApiError(500, "The gateway failed on this request.", type="server_error", code="internal")
            )
            return
        except httptools.HttpParserError as error:
            if not self._refusing:
                self._refuse_parsed(
                    ApiError(400, f"This is not a request of HTTP/1.1: {error}.", code="bad_request")
                )
            return
        if self._in_head and not self._refusing:
            # What a single header of a megabyte is made of never reaches `on_header`.
            if began_in_head:
                self._head_bytes += len(data)
            else:
                self._head_deadline_due = True
                # Where in `data` this head began is not known when it came behind other requests.
                self._head_bytes = 0 if self._queue else len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse_parsed(_head_too_large())

    def _without_upgrade(self, rest: bytes) -> None:
        """Clients that offer HTTP/2 (Java's, curl's) are answered in HTTP/1.1 (RFC 9110 section 7.8).

        llhttp takes an offered upgrade for a made one and leaves the body alone, so the head is read again
        without the offer.
        """
        method = self._parser.get_method()
        if self._refusing:
            return
        if method == b"CONNECT":
            self._refuse_parsed(ApiError(405, "This is no proxy; CONNECT is not served.", code="bad_request"))
            return
        lines = [b"%b %b HTTP/1.1" % (method, self._target)]
        for name, value in self._headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(
                    token for token in tokens if token.lower() not in (b"upgrade", b"http2-settings")
                )
            if name not in (b"upgrade", b"http2-settings", b"expect") and (name != b"connection" or value):
                lines.append(b"%b: %b" % (name, value))
        self._request = None
        self._parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _refuse_parsed(self, error: ApiError) -> None:
        """Nothing more is read; the error is the last answer, after those of earlier requests."""
        self._drop_body()
        self._request = None
        self._queue.append(error)
        self._refuse_input()
        self._service.record_refusal(error)

    def _refuse_input(self) -> None:
        self._refusing = True
        self._early = b""

    def _drop_body(self) -> None:
        if self._body:
            self._service.body_bytes_held -= self._body_bytes
            self._body = []
        self._body_bytes = 0

    def _drop_queue(self) -> None:
        for item in self._queue:
            if isinstance(item, Request):
                self.release_body(item)
        self._queue.clear()

    def release_body(self, request: Request) -> None:
        """The request's body will not be sent again."""
        if request.body:
            self._service.body_bytes_held -= len(request.body)
            request.body = b""

    # Serving.

    def _serve(self) -> None:
        """Answer what has been read, in order, until something has to be waited for."""
        if self._serving:
            return
        self._serving = True
        while self._current is None and not self._closing:
            if self._queue:
                item = self._queue.popleft()
                if isinstance(item, ApiError):
                    self._refuse(item)
                else:
                    self._current = item
                    self._answer(item)
            elif self._early:
                early, self._early = self._early, b""
                self._feed(early)
            else:
                break
        self._serving = False
        if self._current is None and not self._closing:
            self._set_reading_deadline(time.monotonic())

    def _answer(self, request: Request) -> None:
        service = self._service
        try:
            if is_passed_on(request):
                self._exchange = exchange = service.open_exchange(self, request)
                self.deadline = NEVER
                exchange.start()
                return
            self.transport.write(answer_locally(request, service.table, keep_alive=self.keeps_alive()))
        except ApiError as error:
            self.answer_error(error, request)
        self.release_body(request)
        self.answered()

    def answered(self) -> None:
        """The answer of the current request has been written to its end: go on, or close."""
        self._exchange = None
        self._served += 1
        alive = self.keeps_alive()
        self._current = None
        if alive:
            self._serve()
        else:
            self._close()

    def keeps_alive(self) -> bool:
        """Whether another answer may follow the current one."""
        return not self._service.draining and (not self._refusing or bool(self._queue))

    def close_after_answer(self) -> None:
        """The current answer ends with the connection."""
        self._refuse_input()
        self._drop_queue()

    def answer_error(self, error: ApiError, request: Request) -> None:
        """Write an error as the answer of the current request."""
        self.transport.write(
            render(
                error.status,
                error.body(),
                keep_alive=self.keeps_alive(),
                headers=[*error.headers, b"x-request-id: " + request.request_id],
                head_only=request.method == b"HEAD",
            )
        )

    # Ends.

    def _refuse(self, error: ApiError) -> None:
        """Answer and end the connection, reading on for a while so that the answer is not lost to a reset."""
        self._refuse_input()
        self._closing = True
        self.transport.write(render(error.status, error.body(), keep_alive=False, headers=error.headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.deadline = time.monotonic() + (LINGER_S if error.status == 413 else SHORT_LINGER_S)

    def _close(self) -> None:
        self._closing = True
        self._refuse_input()
        self.transport.close()
        # A client that reads nothing would keep a closing transport for ever.
        self.deadline = time.monotonic() + self._service.limits.stall_timeout_s

    def cut(self) -> None:
        """End the connection at once; a client in the middle of an answer sees that it is not whole."""
        self._exchange = None
        self._closing = True
        self._refuse_input()
        self.deadline = self.stall_deadline = NEVER
        self.transport.abort()

    def _leave(self) -> None:
        """The client is gone, or as good as gone: its engine stops working for it."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        self.cut()

    def drain(self) -> None:
        """The router ends: idle connections close, fresh ones may send the request that is on its way."""
        if self._current is not None or self._closing:
            return
        if not self._served:
            self.deadline = min(self.deadline, time.monotonic() + DRAIN_FRESH_S)
        elif not self._in_head and self._request is None:
            self._close()

    # Deadlines.

    def _set_reading_deadline(self, now: float) -> None:
        limits = self._service.limits
        if self._request is not None:
            self.deadline = now + limits.body_idle_timeout_s
        elif not self._in_head:
            # A fresh connection owes a request; one that has had an answer may rest.
            self.deadline = now + (limits.idle_timeout_s if self._served else limits.header_timeout_s)
        elif self._head_deadline_due:
            self._head_deadline_due = False
            self.deadline = now + limits.header_timeout_s

    def deadline_passed(self, now: float) -> None:
        """Called by the sweep. What the deadline meant follows from what the connection is doing."""
        if self.stall_deadline <= now or self._closing:
            self._leave()
        elif self._exchange is not None:
            self.deadline = NEVER
            self._exchange.deadline_passed()
        elif self._in_head or self._request is not None:
            self._refuse_parsed(
                ApiError(408, "The request did not arrive in time; send it without pauses.", code="timeout")
            )
            self._serve()
        else:
            self.cut()


def _head_too_large() -> ApiError:
    return ApiError(
        431,
        f"The request's head exceeds {HEAD_BYTES_MAX} bytes; send fewer or shorter headers.",
        code="bad_request",
    )
