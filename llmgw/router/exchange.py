"""One request from a client through the engines that are tried for it to the end of its answer.

The answer's head is held until its first body byte, and only until then is another engine tried (invariant 8).
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import TYPE_CHECKING

from llmgw.messages.routes import Outcome
from llmgw.router.dechunk import Dechunker
from llmgw.router.errors import REASONS, ApiError, engine_failed, nothing_ready, stream_broke
from llmgw.router.fields import replace_model
from llmgw.router.limits import ATTEMPTS_MAX, DEATHS_MAX
from llmgw.router.request import Request
from llmgw.router.response_parser import CHUNKED, LENGTH, NONE, UNTIL_CLOSE, ResponseHead
from llmgw.router.table import Endpoint, Model, choose
from llmgw.router.upstream import UpstreamConnection, dial, take_idle

if TYPE_CHECKING:
    from llmgw.router.client import ClientConnection
    from llmgw.router.service import Service

# Answers that say "not me, not now": another engine may do better. A 500 may be the request's own fault.
RETRIED_STATUSES = frozenset((502, 503, 504))
# What says something about the engine's health. 501 is about the request.
_FAILURE_STATUSES = frozenset((500, *RETRIED_STATUSES))
# An open chunk is filled up with line ends to send an error event behind it; beyond this the client is cut.
_FILLED_BYTES_MAX = 64 * 1024
CLIENT_LEFT = 499
NEVER = math.inf


class Exchange:
    """A request that is passed on. The client connection owns it and is told when it is over."""

    __slots__ = (
        "_asked",
        "_attempts",
        "_body",
        "_client",
        "_connection",
        "_deaths",
        "_dechunker",
        "_dialling",
        "_endpoint",
        "_event_stream",
        "_failure",
        "_head",
        "_model",
        "_over",
        "_probe",
        "_request",
        "_service",
        "_started_at",
        "_stream",
        "_target",
        "_tried",
        "first_byte_at",
    )

    def __init__(
        self, service: Service, client: ClientConnection, request: Request, model: Model, stream: bool
    ) -> None:
        """Raises ApiError for a path that goes to no engine."""
        self._target = request.upstream_target()
        self._service = service
        self._client = client
        self._request = request
        self._model = model
        self._stream = stream
        self._body = request.body
        self._attempts = 0
        self._deaths = 0
        self._tried: list[Endpoint] = []
        self._failure: ApiError | None = None
        self._asked = False
        self._connection: UpstreamConnection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._endpoint: Endpoint | None = None
        self._probe = False
        self._head: ResponseHead | None = None
        self._event_stream = False
        self._dechunker: Dechunker | None = None
        self._over = False
        self._started_at = time.monotonic()
        self.first_byte_at = 0.0

    def start(self) -> None:
        """Send the request to an endpoint, or answer that there is none."""
        if not self._model.endpoints:
            route = self._model.route
            self._answer(nothing_ready(self._model.name, route.reason, route.retry_after_s))
            return
        self._attempt()

    # One attempt after the other.

    def _another(self, deaths: int) -> Endpoint | None:
        """The endpoint for the next attempt, if there may be one after so many deaths."""
        if deaths >= DEATHS_MAX or self._attempts >= ATTEMPTS_MAX:
            return None
        return choose(self._model.endpoints, time.monotonic(), self._tried, random.random)

    def _attempt(self) -> None:
        endpoint = self._another(self._deaths)
        if endpoint is None:
            self._answer(self._failure or engine_failed(self._model.name, "no endpoint was left to try"))
            return
        now = time.monotonic()
        self._attempts += 1
        self._tried.append(endpoint)
        self._endpoint = endpoint
        self._probe = endpoint.begin(now)
        self._send(endpoint, take_idle(endpoint, now))

    def _send(self, endpoint: Endpoint, connection: UpstreamConnection | None) -> None:
        if connection is None:
            self._asked = False
            self._client.deadline = NEVER
            self._connection = connection = UpstreamConnection(endpoint)
            self._dialling = self._service.loop.create_task(self._dial(connection))
            return
        self._connection = connection
        request, body, route = self._request, self._body, endpoint.route
        if route.upstream_model is not None:
            body = replace_model(body, request.content_type, route.upstream_model)
        head = b"POST %b%b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
            endpoint.base_path,
            self._target,
            endpoint.head,
            b"".join(request.lines),
            len(body),
        )
        self._asked = True
        self._client.deadline = time.monotonic() + self._model.route.first_byte_timeout_s
        connection.send(self, head, body)

    async def _dial(self, connection: UpstreamConnection) -> None:
        endpoint = connection.endpoint
        service = self._service
        try:
            context = service.tls_context() if endpoint.route.tls else None
            await dial(connection, service.limits.connect_timeout_s, context)
        except TimeoutError:
            why = f"it took no connection within {service.limits.connect_timeout_s:g} s"
        except (OSError, UnicodeError) as error:
            why = f"its connection failed ({getattr(error, 'strerror', None) or error})"
        else:
            self._dialling = None
            if not self._over:
                self._send(endpoint, connection)
            return
        self._dialling = None
        connection.abandon()
        if not self._over:
            service.telemetry.refused(endpoint.id)
            self._connection = None
            self._attempt_failed(why, died=False)

    def _attempt_failed(self, why: str, *, died: bool, status: int = 502) -> None:
        """This engine will not answer. `died`: it had the request, so that it may have been what killed it."""
        endpoint = self._endpoint
        assert endpoint is not None
        endpoint.failed(time.monotonic())
        self._deaths += died
        self._leave_endpoint()
        self._head = None
        if died or self._failure is None:
            self._failure = engine_failed(self._model.name, f"the engine {endpoint.id}: {why}", status=status)
        self._attempt()

    def _leave_endpoint(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        self._connection = None
        if endpoint is not None and endpoint.end(self._probe):
            self._service.endpoint_idle(endpoint)

    # What the engine's connection calls.

    def upstream_head(self, head: ResponseHead) -> bool:
        """Judge an answer by its status. True: another engine is asked instead."""
        endpoint = self._endpoint
        assert endpoint is not None
        if head.status in RETRIED_STATUSES:
            other = self._another(self._deaths + 1)
            # Only a healthy one: trying a broken one would lose this engine's own answer for nothing.
            if other is not None and other.available(time.monotonic()):
                if self._connection is not None:
                    self._connection.abandon()
                self._attempt_failed(f"it answered {head.status}", died=True)
                return True
        self._head = head
        return False

    def upstream_data(self, data: bytes, done: bool) -> None:
        """Body bytes of the answer: the first carry the head along, and from here on no other engine is tried."""
        endpoint = self._endpoint
        assert endpoint is not None
        if self._head is not None and self._head.status < 500:  # a 500 is no sign of life
            self._service.telemetry.alive.add(endpoint.id)
        transport = self._client.transport
        if not self.first_byte_at:
            head = self._first_byte()
            transport.write(head + (self._dechunker.feed(data) if self._dechunker is not None else data))
        elif self._dechunker is not None:
            transport.write(self._dechunker.feed(data))
        elif data:
            transport.write(data)
        if done:
            status = self._head.status if self._head is not None else 0
            self._finish(status)

    def upstream_lost(self, reason: str) -> None:
        """The engine's connection ended too early, or what came over it was no answer."""
        connection, endpoint = self._connection, self._endpoint
        assert endpoint is not None
        if self.first_byte_at:
            self._break_off(f"the engine {endpoint.id} {reason}")
        elif connection is not None and connection.reused and not connection.parser.received:
            # The engine had closed a kept connection while the request was on its way: that says nothing of it.
            self._send(endpoint, None)
        else:
            self._attempt_failed(f"it {reason}", died=True)

    def _first_byte(self) -> bytes:
        """The answer's head for the client, built when nothing can be taken back any more."""
        head, request, client = self._head, self._request, self._client
        endpoint = self._endpoint
        assert head is not None
        assert endpoint is not None
        now = self.first_byte_at = time.monotonic()
        if head.status < 400:
            endpoint.succeeded()
        elif head.status in _FAILURE_STATUSES:
            endpoint.failed(now)
        else:
            endpoint.answered()
        client.deadline = NEVER
        if client.paused:
            self.client_paused(True)
        client.release_body(request)
        self._body = b""
        framing = head.framing
        self._event_stream = head.get(b"content-type")[:17].lower() == b"text/event-stream"
        lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, REASONS.get(head.status, b""))]
        for name, value in head.headers:
            if name not in _REPLACED:
                lines.append(b"%b: %b\r\n" % (name, value))
        if framing == CHUNKED:
            if request.http10:
                self._dechunker = Dechunker()
            else:
                lines.append(b"transfer-encoding: chunked\r\n")
        elif framing == LENGTH:
            lines.append(b"content-length: %d\r\n" % head.length)
        if framing == UNTIL_CLOSE:
            client.close_after_answer()
        if self._event_stream:
            lines.append(b"x-accel-buffering: no\r\n")
        lines.append(b"x-request-id: %b\r\nx-llmgw-replica: %b\r\n" % (request.request_id, endpoint.id.encode()))
        if not client.keeps_alive():
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _break_off(self, what: str) -> None:
        """The engine died in the middle: the client must not take what it has for the whole."""
        head, connection, client = self._head, self._connection, self._client
        assert head is not None
        if self._endpoint is not None:
            self._endpoint.failed(time.monotonic())
        chunk_left = connection.parser.chunk_left if connection is not None else 0
        if not self._event_stream or head.framing in (LENGTH, NONE) or chunk_left > _FILLED_BYTES_MAX:
            self._finish(502, error=what, cut=True)
            return
        event = stream_broke(self._model.name, what).sse_event()
        # Blank lines end an event that stopped in the middle: it is no JSON then, and fails loudly as well.
        event = b"\n\n" + event
        if head.framing == CHUNKED and self._dechunker is None:
            filler = b"\n" * (chunk_left - 2) + b"\r\n"[2 - min(chunk_left, 2) :] if chunk_left else b""
            event = filler + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)
        client.transport.write(event)
        self._finish(502, error=what, close=True)

    # What the client's connection calls.

    def client_gone(self) -> None:
        """The client left: the engine sees its connection closed at once, whatever it was doing."""
        if not self._over:
            self._finish(CLIENT_LEFT, error="the client left", client_there=False)

    def client_paused(self, paused: bool) -> None:
        """The client reads slower than the engine writes, or reads again."""
        connection = self._connection
        if connection is not None:
            if paused:
                connection.pause_reading()
            else:
                connection.resume_reading()

    def deadline_passed(self) -> None:
        """No body byte within the model's first-byte limit."""
        if self._over or self.first_byte_at or not self._asked:
            return
        connection = self._connection
        if connection is not None:
            connection.abandon()
        limit_s = self._model.route.first_byte_timeout_s
        self._attempt_failed(f"it gave no byte of an answer within {limit_s:g} s", died=True, status=504)

    # Ends.

    def _answer(self, error: ApiError) -> None:
        """Answer in the gateway's own words."""
        self._over = True
        client = self._client
        client.release_body(self._request)
        self._record(error.status, error.message)
        client.answer_error(error, self._request)
        client.answered()

    def _finish(
        self,
        status: int,
        *,
        error: str | None = None,
        cut: bool = False,
        close: bool = False,
        client_there: bool = True,
    ) -> None:
        self._over = True
        connection, client = self._connection, self._client
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        if connection is not None and (error is not None or not client_there):
            connection.abandon()
        endpoint = self._endpoint
        self._record(status, error, endpoint)
        self._leave_endpoint()
        client.release_body(self._request)
        self._body = b""
        if not client_there:
            return
        if cut:
            client.cut()
            return
        if close:
            client.close_after_answer()
        client.answered()

    def _record(self, status: int, error: str | None, endpoint: Endpoint | None = None) -> None:
        first = self.first_byte_at
        started = self._started_at
        self._service.telemetry.record(
            Outcome(
                model=self._model.name,
                endpoint=endpoint.id if endpoint is not None else None,
                status=status,
                retries=max(0, self._attempts - 1),
                first_byte_s=first - started if first else None,
                total_s=time.monotonic() - started,
                stream=self._stream,
                error=error[:500] if error is not None else None,
            )
        )


# Said by the gateway itself, or about the engine's connection only.
_REPLACED = frozenset(
    (
        b"x-request-id",
        b"x-llmgw-replica",
        b"x-accel-buffering",
        b"proxy-authenticate",
        b"upgrade",
        b"trailer",
        b"proxy-connection",
    )
)
