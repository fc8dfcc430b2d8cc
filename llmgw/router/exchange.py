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
from llmgw.router.answer import answer_head, broken_ending
from llmgw.router.caller import ANYBODY, Caller
from llmgw.router.dechunk import Dechunker
from llmgw.router.endpoint import Endpoint
from llmgw.router.errors import (
    ApiError,
    busy,
    engine_failed,
    engines_full,
    nothing_ready,
    out_of_time,
    stream_broke,
)
from llmgw.router.fields import replace_model
from llmgw.router.request import Request
from llmgw.router.response_parser import CHUNKED, UNTIL_CLOSE, ResponseHead
from llmgw.router.table import Model
from llmgw.router.tries import Tries
from llmgw.router.upstream import OUR_OWN_ERRORS, UpstreamConnection, dial, take_idle

if TYPE_CHECKING:
    from llmgw.router.client import ClientConnection
    from llmgw.router.service import Service

log = logging.getLogger(__name__)

# Answers that say "not me, not now": another engine may do better. A 500 may be the request's own fault.
RETRIED_STATUSES = frozenset((502, 503, 504))
_NOT_IMPLEMENTED = 501  # about the request, and no failure of the engine as the other 5xx are
CLIENT_LEFT = 499
NEVER = math.inf


class Exchange:
    """A request that is passed on. The client connection owns it and is told when it is over."""

    __slots__ = (
        "_asked",
        "_body",
        "_caller",
        "_client",
        "_connection",
        "_dechunker",
        "_dialling",
        "_endpoint",
        "_ends_at",
        "_failure",
        "_head",
        "_heard_at",
        "_model",
        "_over",
        "_probe",
        "_request",
        "_sent",
        "_service",
        "_started_at",
        "_stream",
        "_target",
        "_tries",
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
        caller: Caller = ANYBODY,
    ) -> None:
        """`point` is where the conversation stands on the model's ring.

        Raises ApiError for a path that goes to no engine.
        """
        self._target = request.upstream_target()
        self._service = service
        self._client = client
        self._request = request
        self._model = model
        self._stream = stream
        self._caller = caller
        self._tries = Tries(model, random.random, point)
        self._body = request.body
        self._failure: ApiError | None = None
        self._asked = False
        """The request is with an engine, and its answer is waited for."""
        self._sent = False
        """The endpoint of this attempt has had the request, be it over a connection that was lost."""
        self._connection: UpstreamConnection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._endpoint: Endpoint | None = None
        self._probe = False
        self._head: ResponseHead | None = None
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
        self._attempt()

    # One attempt after the other.

    def _attempt(self) -> None:
        now = monotonic()
        endpoint = self._tries.another(now)
        if endpoint is None:
            self._answer(self._failure or engines_full(self._model.name))
            return
        self._tries.begin(endpoint, now)
        self._sent = False
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
            if getattr(error, "errno", None) in OUR_OWN_ERRORS:
                self._cannot_connect(error)
                return
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

    def _cannot_connect(self, error: Exception) -> None:
        """This process has no descriptor left, which says nothing of any engine."""
        self._service.cannot_connect.error("engines cannot be reached: %s", error)
        self._dialling = None
        if not self._over:
            self._hang_up()
            self._leave_endpoint()
            self._answer(busy("This gateway has no room for more connections to engines; try again."))

    def _attempt_failed(self, why: str, *, died: bool, status: int = 502) -> None:
        """This engine will not answer. `died`: it had the request, so that it may have been what killed it."""
        endpoint = self._endpoint
        assert endpoint is not None
        self._endpoint_failed(endpoint, why)
        if died:
            self._tries.died()
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
            other = self._tries.another(now, deaths=1)
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
            if self._tries.again(monotonic()):
                self._send(endpoint, None)
            else:
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
        if head.framing == CHUNKED and request.http10:
            self._dechunker = Dechunker()
        elif head.framing == UNTIL_CLOSE:
            client.close_after_answer()
        return answer_head(head, request, endpoint.id, keep_alive=client.keeps_alive())

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
        event = stream_broke(self._model.name, what).sse_event()
        ending = broken_ending(head, event, chunk_left, chunked=self._dechunker is None)
        if ending is None:
            self._finish(502, error=what, cut=True)
            return
        client.transport.write(ending)
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
        """The client's deadline is over: of the request, of the first byte, or of silence after it."""
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
                retries=self._tries.retries,
                first_byte_s=first - started if first else None,
                total_s=monotonic() - started,
                stream=self._stream,
                error=error[:500] if error is not None else None,
                retry_refused=self._tries.refused and status >= 500,
                key=self._caller.id,
            )
        )
        self._caller.ended(0)
