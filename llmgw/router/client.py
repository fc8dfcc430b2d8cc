"""One client's connection: HTTP/1.1 by llhttp, one request after the other, everything bounded.

A client that shuts its sending half counts as gone, as in nginx: nothing else tells a closed socket from it
until the answer is written, and an engine must not work for nobody.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from typing import TYPE_CHECKING, cast

from llmgw.router.dialects import render_error
from llmgw.router.errors import ApiError, busy, render
from llmgw.router.limits import (
    DRAIN_IDLE_S,
    EARLY_BYTES_MAX,
    LINGER_S,
    SHORT_LINGER_S,
)
from llmgw.router.local import answer_locally, is_passed_on
from llmgw.router.request import Request
from llmgw.router.request_reader import RequestReader

if TYPE_CHECKING:
    from llmgw.router.exchange import Exchange
    from llmgw.router.service import Service

NEVER = math.inf


class ClientConnection(asyncio.Protocol):
    """Reads requests, answers them in order, and tells the running exchange when the client pauses or leaves.

    `deadline` is the one time that matters now (head, body, idle, first byte, silence); the service sweeps it.
    """

    __slots__ = (
        "_closing",
        "_current",
        "_early",
        "_exchange",
        "_late",
        "_overflows",
        "_reader",
        "_served",
        "_service",
        "_serving",
        "_stays",
        "deadline",
        "paused",
        "stall_deadline",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self._service = service
        self._reader = RequestReader(
            body_bytes_max=service.limits.body_bytes_max,
            budget=service.bodies,
            may_go_on=self._continue,
            identify=service.keys.identify,
        )
        self._early = b""
        """What came while a request was being answered."""
        self._current: Request | None = None
        """The request that is being answered."""
        self._exchange: Exchange | None = None
        """Its way through the engines, when it is passed on."""
        self._late = b""
        """A whole answer that is to be written."""
        self._closing = False
        self._overflows = False
        self._served = 0
        self._serving = False
        self._stays = False
        """What the head of the current answer promised: that the connection is kept."""
        self.paused = False
        self.deadline = NEVER
        self.stall_deadline = NEVER

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        service = self._service
        service.clients.add(self)
        self.deadline = time.monotonic() + service.limits.header_timeout_s
        if len(service.clients) - service.overflowing <= service.limits.connections_max:
            return
        self._overflows = True
        service.overflowing += 1
        if service.overflowing > service.limits.overflow_connections_max:
            self.cut()
        else:
            self._refuse(busy("This gateway has all the connections it can serve; try again."))

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.refusing:
            return
        if self._current is not None:
            # Read on in spite of it: only a socket that is read tells that its client left.
            self._early += data
            if len(self._early) > EARLY_BYTES_MAX:
                self._refuse_input()
            return
        began_in_head = reader.in_head
        reader.feed(data)
        if reader.in_head and not began_in_head:
            self.deadline = time.monotonic() + self._service.limits.header_timeout_s
        self._serve()

    def eof_received(self) -> bool:
        if self._exchange is not None:
            self._leave()
        else:
            self.flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        service = self._service
        service.clients.discard(self)
        service.overflowing -= self._overflows
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        self._closing = True
        self._late = b""
        self._reader.close()

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

    # Serving.

    def _serve(self) -> None:
        """Answer what has been read, in order, until something has to be waited for."""
        if self._serving:
            return
        self._serving = True
        reader = self._reader
        while self._current is None and not self._closing:
            if reader.queue:
                item = reader.queue.popleft()
                if isinstance(item, ApiError):
                    self._refuse(item)
                else:
                    self._current = item
                    self._answer(item)
            elif self._early:
                early, self._early = self._early, b""
                reader.feed(early)
                if reader.in_head:
                    self.deadline = time.monotonic() + self._service.limits.header_timeout_s
            else:
                break
        self._serving = False
        if self._current is None and not self._closing:
            self._rest(time.monotonic())

    def _rest(self, now: float) -> None:
        """All that was read is answered: what comes next has its time."""
        reader, service = self._reader, self._service
        if reader.in_head or reader.in_body or service.draining or not self._served:
            reader.go_on()
            self._set_reading_deadline(now)
        else:  # nearly always; as `_set_reading_deadline`
            self.deadline = now + service.limits.idle_timeout_s

    def _answer(self, request: Request) -> None:
        service = self._service
        if request.origin and service.cors is not None:
            request.answer_headers += service.cors.headers(request.origin)
        if request.forwarded and service.proxies is not None:
            peer = self.transport.get_extra_info("peername")
            if peer:  # who has left already has none
                service.proxies.pass_on(request, peer[0])
        try:
            if is_passed_on(request):
                self._exchange = exchange = service.open_exchange(self, request)
                self.deadline = NEVER
                exchange.start()
                return
            self.write(answer_locally(request, service.table, service.keys, keep_alive=self.keeps_alive()))
        except ApiError as error:
            self.answer_error(error, request)
        self.release_body(request)
        self.answered(time.monotonic())

    def answered(self, now: float) -> None:
        """The answer of the current request has been written to its end: go on, or close."""
        self._exchange = None
        self._served += 1
        self._current = None
        reader = self._reader
        # A client that was promised the connection may have sent its next request already.
        if not self._stays or (reader.refusing and not reader.queue):
            self._close()
        elif self._early or reader.queue:
            self._serve()
        elif not self._serving:
            self._rest(now)

    def keeps_alive(self) -> bool:
        """Whether another answer may follow the current one; its head says so, and it is kept to."""
        reader = self._reader
        self._stays = stays = not self._service.draining and (not reader.refusing or bool(reader.queue))
        return stays

    def close_after_answer(self) -> None:
        """The current answer ends with the connection."""
        self._refuse_input()
        self._reader.drop_queue()

    def release_body(self, request: Request) -> None:
        """The request's body will not be sent again."""
        self._service.bodies.held -= len(request.body)
        request.body = b""

    def answer_error(self, error: ApiError, request: Request) -> None:
        """Write an error as the answer of the current request."""
        body, headers = render_error(error, request.path, request.request_id)
        self.write(
            render(
                error.status,
                body,
                keep_alive=self.keeps_alive(),
                headers=headers,
                more_headers=request.own_lines,
                head_only=request.method == b"HEAD",
            )
        )

    # Writing.

    def write(self, data: bytes) -> None:
        """Write at once, behind what is late."""
        if self._late:
            self.flush()
        self.transport.write(data)

    def write_late(self, data: bytes) -> None:
        """Write a whole answer when the turn of the event loop is over."""
        if self._late:
            self.flush()
        self._late = data
        self._service.late.add(self)

    def flush(self) -> None:
        late, self._late = self._late, b""
        if late and not self.transport.is_closing():
            self.transport.write(late)

    # Ends.

    def _refuse(self, error: ApiError) -> None:
        """Answer and end the connection, reading on for a while so that the answer is not lost to a reset."""
        self._service.record_refusal(error)
        self._refuse_input()
        self._closing = True
        cors, origin = self._service.cors, self._reader.origin
        more = cors.headers(origin) if cors is not None and origin else b""
        body, headers = render_error(error, self._reader.path, b"")
        self.write(render(error.status, body, keep_alive=False, headers=headers, more_headers=more))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.deadline = time.monotonic() + (LINGER_S if error.status == 413 else SHORT_LINGER_S)

    def _close(self) -> None:
        self._closing = True
        self._refuse_input()
        self.flush()
        self.transport.close()
        # A client that reads nothing would keep a closing transport for ever.
        self.deadline = time.monotonic() + self._service.limits.stall_timeout_s

    def cut(self) -> None:
        """End the connection at once; a client in the middle of an answer sees that it is not whole."""
        if self._current is not None or self._late or self.transport.get_write_buffer_size():
            self._reset_when_closed()
        self._late = b""
        self._exchange = None
        self._closing = True
        self._refuse_input()
        self.deadline = self.stall_deadline = NEVER
        self.transport.abort()

    def _reset_when_closed(self) -> None:
        """A body that lasts until the connection closes would look whole if it were closed in order."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _leave(self) -> None:
        """The client is gone, or as good as gone: its engine stops working for it."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        self.cut()

    def _refuse_input(self) -> None:
        self._reader.refusing = True
        self._early = b""

    def _continue(self) -> None:
        self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def drain(self) -> None:
        """The router ends: a connection without a request may still send the one that is on its way."""
        if self._current is not None or self._closing:
            return
        if not self._served or (not self._reader.in_head and not self._reader.in_body):
            self.deadline = min(self.deadline, time.monotonic() + DRAIN_IDLE_S)

    # Deadlines.

    def _set_reading_deadline(self, now: float) -> None:
        limits, reader = self._service.limits, self._reader
        if reader.in_body:
            self.deadline = now + limits.body_idle_timeout_s
        elif not reader.in_head:
            # A fresh connection owes a request; one that has had an answer may rest.
            idle_s = limits.idle_timeout_s if self._served else limits.header_timeout_s
            self.deadline = now + (DRAIN_IDLE_S if self._service.draining else idle_s)
        elif self.deadline == NEVER:
            # A head that began behind the last request. It is not extended by what comes of it.
            self.deadline = now + limits.header_timeout_s

    def deadline_passed(self, now: float) -> None:
        """Called by the sweep. What the deadline meant follows from what the connection is doing."""
        if self._closing and not self.transport.can_write_eof() and not self.transport.is_closing():
            # TLS has no half that could be shut: its end is said when there was time to read the answer.
            self.deadline = now + SHORT_LINGER_S
            self.transport.close()
        elif self.stall_deadline <= now or self._closing:
            self._leave()
        elif self._exchange is not None:
            self.deadline = NEVER
            self._exchange.deadline_passed()
        elif self._reader.in_head or self._reader.in_body:
            self._reader.refuse(
                ApiError(408, "The request did not arrive in time; send it without pauses.", code="timeout")
            )
            self._serve()
        else:
            self.cut()
