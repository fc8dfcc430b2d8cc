"""One request from a client through the engines that are tried for it to the end of its answer.

The answer's head is held until its first body byte, and only until then is another engine tried (invariant 8).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from time import monotonic
from typing import TYPE_CHECKING

from llmgw.messages.routes import Outcome
from llmgw.router.dechunk import Dechunker
from llmgw.router.endpoint import Endpoint
from llmgw.router.errors import (
    REASONS,
    ApiError,
    engine_failed,
    engines_full,
    nothing_ready,
    out_of_time,
    stream_broke,
)
from llmgw.router.fields import replace_model
from llmgw.router.limits import ATTEMPTS_MAX, DEATHS_MAX
from llmgw.router.request import Request
from llmgw.router.response_parser import CHUNKED, LENGTH, NONE, UNTIL_CLOSE, ResponseHead
from llmgw.router.table import Model
from llmgw.router.upstream import UpstreamConnection, dial, take_idle

if TYPE_CHECKING:
    from llmgw.router.client import ClientConnection
    from llmgw.router.service import Service

log = logging.getLogger(__name__)

# Answers that say "not me, not now": another engine may do better. A 500 may be the request's own fault.
RETRIED_STATUSES = frozenset((502, 503, 504))
_NOT_IMPLEMENTED = 501  # about the request, and no failure of the engine as the other 5xx are
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
        "_ends_at",
        "_event_stream",
        "_failure",
        "_head",
        "_heard_at",
        "_model",
        "_over",
        "_point",
        "_probe",
        "_request",
        "_retry_refused",
        "_sent",
        "_service",
        "_started_at",
        "_stream",
        "_target",
        "_tried",
        "first_byte_at",
    )

    def __init__(
        self,
        service: Service,
        client: ClientConnection,
        request: Request,
        model: Model,
        stream: bool,
        point: int | None = None,
    ) -> None:
        """`point` is where the conversation stands on the model's ring. Raises ApiError for a path that goes to no
        engine."""
        self._target = request.upstream_target()
        self._service = service
        self._client = client
        self._request = request
        self._model = model
        self._stream = stream
        self._point = point
        self._body = request.body
        self._attempts = 0
        self._deaths = 0
        self._tried: list[Endpoint] = []
        self._failure: ApiError | None = None
        self._retry_refused = False
        self._asked = False
        """The request is with an engine, and its answer is waited for."""
        self._sent = False
        """The endpoint of this attempt has had the request, be it over a connection that was lost."""
        self._connection: UpstreamConnection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._endpoint: Endpoint | None = None
        self._probe = False
        self._head: ResponseHead | None = None
        self._event_stream = False
        self._dechunker: Dechunker | None = None
        self._over = False
        self._started_at = monotonic()
        self._ends_at = self._started_at + model.route.request_timeout_s
        self._heard_at = 0.0
        """When the engine last sent body bytes, or was last let send any."""
        self.first_byte_at = 0.0

    def start(self) -> None:
        """Send the request to an endpoint, or answer that there is none."""
        if not self._model.endpoints:
            route = self._model.route
            self._answer(nothing_ready(self._model.name, route.reason, route.retry_after_s))
            return
        self._model.budget.request()
        self._attempt()

    # One attempt after the other.

    def _another(self, deaths: int, now: float) -> Endpoint | None:
        """The endpoint for the next attempt, if there may be one after so many deaths."""
        if deaths >= DEATHS_MAX or self._attempts >= ATTEMPTS_MAX:
            return None
        model = self._model
        endpoint = model.pool.choose(now, self._tried, random.random, self._point)
        if endpoint is not None and self._attempts and not model.budget.allows(now):
            self._retry_refused = True
            return None
        return endpoint

    def _attempt(self) -> None:
        now = monotonic()
        endpoint = self._another(self._deaths, now)
        if endpoint is None:
            self._answer(self._failure or engines_full(self._model.name))
            return
        if self._attempts:
            self._model.budget.spend(now)
        self._attempts += 1
        self._sent = False
        self._tried.append(endpoint)
        self._endpoint = endpoint
        self._probe = endpoint.begin(now)
        self._send(endpoint, take_idle(endpoint, now))

    def _send(self, endpoint: Endpoint, connection: UpstreamConnection | None) -> None:
        if connection is None:
            self._asked = False
            self._client.deadline = self._ends_at
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
        self._asked = self._sent = True
        self._client.deadline = min(monotonic() + self._model.route.first_byte_timeout_s, self._ends_at)
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
            # It had the request over a kept connection, and now it is gone: that may be what killed it.
            self._attempt_failed(why, died=self._sent)

    def _attempt_failed(self, why: str, *, died: bool, status: int = 502) -> None:
        """This engine will not answer. `died`: it had the request, so that it may have been what killed it."""
        endpoint = self._endpoint
        assert endpoint is not None
        self._endpoint_failed(endpoint, why)
        self._deaths += died
        self._leave_endpoint()
        self._head = None
        if died or self._failure is None:
            self._failure = engine_failed(self._model.name, f"the engine {endpoint.id}: {why}", status=status)
        self._attempt()

    def _endpoint_failed(self, endpoint: Endpoint, why: str) -> None:
        if endpoint.failed(monotonic(), self._probe):
            log.warning("left alone for a while, since it failed again: endpoint %s, %s", endpoint.id, why)
        self._probe = False

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
            now = monotonic()
            other = self._another(self._deaths + 1, now)
            # Only a healthy one: trying a broken one would lose this engine's own answer for nothing.
            if other is not None and other.breaker.available(now):
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
        self._heard_at = monotonic()
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
            if self._model.budget.spend(monotonic()):
                self._send(endpoint, None)
            else:
                self._retry_refused = True
                self._attempt_failed(f"it {reason}", died=True)
        else:
            self._attempt_failed(f"it {reason}", died=True)

    def _first_byte(self) -> bytes:
        """The answer's head for the client, built when nothing can be taken back any more."""
        head, request, client = self._head, self._request, self._client
        endpoint = self._endpoint
        assert head is not None
        assert endpoint is not None
        now = self.first_byte_at = self._heard_at
        self._judge(endpoint, head.status, now)
        client.deadline = min(now + self._model.route.chunk_timeout_s, self._ends_at)
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

    def _judge(self, endpoint: Endpoint, status: int, now: float) -> None:
        """What an answer's status says of the endpoint that gave it."""
        if status >= 500 and status != _NOT_IMPLEMENTED:
            self._endpoint_failed(endpoint, f"it answered {status}")
        else:
            if endpoint.succeeded(now) if status < 400 else endpoint.answered(now):
                log.info("it answers again: endpoint %s", endpoint.id)
            self._probe = False

    def _break_off(self, what: str, *, engines_fault: bool = True) -> None:
        """No more comes of an answer that has begun: the client must not take what it has for the whole."""
        head, connection, client = self._head, self._connection, self._client
        assert head is not None
        if self._endpoint is not None and engines_fault:
            self._endpoint_failed(self._endpoint, what)
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
                self._heard_at = monotonic()
                connection.resume_reading()

    def deadline_passed(self) -> None:
        """Called when the client's deadline is over: of the request, of the first byte, or of silence after it."""
        if self._over:
            return
        route = self._model.route
        now = monotonic()
        if now >= self._ends_at:
            self._time_is_up()
        elif self.first_byte_at:
            # It is set once and not with every chunk, which would cost more than to look again.
            silent_since = now if self._client.paused else self._heard_at
            due = silent_since + route.chunk_timeout_s
            if due > now:
                self._client.deadline = min(due, self._ends_at)
            else:
                name = self._endpoint.id if self._endpoint is not None else ""
                self._break_off(f"the engine {name} sent nothing more within {route.chunk_timeout_s:g} s")
        elif self._asked:
            self._hang_up()
            limit_s = route.first_byte_timeout_s
            self._attempt_failed(f"it gave no byte of an answer within {limit_s:g} s", died=True, status=504)

    def _time_is_up(self) -> None:
        """The whole request took too long. No other engine is asked, and this one is not to blame."""
        limit_s = self._model.route.request_timeout_s
        if self.first_byte_at:
            what = f"the whole request took longer than its request_timeout of {limit_s:g} s"
            self._break_off(what, engines_fault=False)
            return
        self._hang_up()
        self._leave_endpoint()
        self._answer(out_of_time(self._model.name, limit_s))

    def _hang_up(self) -> None:
        """The engine sees its connection closed, or it is made no more."""
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        if self._connection is not None:
            self._connection.abandon()

    # Ends.

    def _answer(self, error: ApiError) -> None:
        """Answer in the gateway's own words."""
        self._over = True
        client = self._client
        client.deadline = NEVER
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
        client = self._client
        client.deadline = NEVER
        if error is not None or not client_there:
            self._hang_up()
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
                total_s=monotonic() - started,
                stream=self._stream,
                error=error[:500] if error is not None else None,
                retry_refused=self._retry_refused and status >= 500,
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
