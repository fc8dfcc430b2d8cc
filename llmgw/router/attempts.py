"""One request on its way to an engine: which endpoint has it, over which connection, and who is next when that
one does not answer.

It is tried on another engine only while no body byte has come from the first (invariant 8). What becomes of it
then is in `llmgw.router.exchange`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from time import monotonic
from typing import TYPE_CHECKING

from llmgw.router.caller import ANYBODY, Caller
from llmgw.router.dialects import dialect_of
from llmgw.router.endpoint import Endpoint
from llmgw.router.errors import ApiError, busy, engine_failed, nothing_ready
from llmgw.router.fields import replace_model
from llmgw.router.passing import Passing
from llmgw.router.queue import Waiter
from llmgw.router.request import Request
from llmgw.router.response_head import ResponseHead
from llmgw.router.table import Model
from llmgw.router.tries import Tries
from llmgw.router.upstream import OUR_OWN_ERRORS, UpstreamConnection, dial, take_idle
from llmgw.router.usage import RequestUsage

if TYPE_CHECKING:
    from llmgw.router.anthropic.dialect import MessagesDialect
    from llmgw.router.client import ClientConnection
    from llmgw.router.service import Service

log = logging.getLogger(__name__)

# Answers that say "not me, not now": another engine may do better. A 500 may be the request's own fault.
RETRIED_STATUSES = frozenset((502, 503, 504))


class Attempts:
    """The part of an `Exchange` that sends."""

    __slots__ = (
        "_body",
        "_caller",
        "_client",
        "_connection",
        "_dialect",
        "_dialling",
        "_endpoint",
        "_ends_at",
        "_failed",
        "_failure",
        "_head",
        "_model",
        "_over",
        "_passing",
        "_pinged",
        "_probe",
        "_request",
        "_sent",
        "_service",
        "_started_at",
        "_stream",
        "_target",
        "_tries",
        "_usage",
        "_waiter",
        "first_byte_at",
    )

    # Set with each endpoint that is tried; not in vain before, for every request.
    _sent: bool
    """The endpoint of this attempt has had the request, be it over a connection that was lost."""
    _probe: bool
    _head: ResponseHead | None
    _failed: list[str]
    """What became of each engine that did not answer, in order. Set with the first, as `_failure` is."""

    def __init__(
        self,
        service: Service,
        client: ClientConnection,
        request: Request,
        model: Model,
        stream: bool,
        usage: RequestUsage,
        now: float,
        point: int | None = None,
        caller: Caller = ANYBODY,
    ) -> None:
        """`now` is when it came, `point` where the conversation stands on the model's ring.

        Raises ApiError for a path that goes to no engine.
        """
        self._target = request.upstream_target()
        self._service = service
        self._client = client
        self._request = request
        self._model = model
        self._stream = stream
        self._usage = usage
        self._caller = caller
        self._tries = Tries(model, random.random, point)
        self._body = request.body
        self._dialect = dialect = dialect_of(request, model.route, service.bodies)
        self._passing = Passing(client, request, dialect, usage)
        self._failure: ApiError | None = None
        self._connection: UpstreamConnection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._endpoint: Endpoint | None = None
        self._waiter: Waiter | None = None
        """What it is in the model's queue, or was there; None: it never had to wait."""
        self._pinged = False
        """The client is sent comments until the first byte."""
        self._over = False
        self._started_at = now
        self._ends_at = now + model.route.request_timeout_s
        self.first_byte_at = 0.0
        """When an answer began, after which nothing else is tried; 0 before."""

    if TYPE_CHECKING:  # what the exchange that this is a part of does

        def _answer(self, error: ApiError) -> None:
            """No engine answers: the client is told so."""

        def ping(self) -> None:
            """Called while nothing has come for this stream: its client gets a comment."""

        def upstream_data(self, data: bytes, done: bool, now: float) -> None:
            """Body bytes of the answer."""

        def upstream_lost(self, reason: str) -> None:
            """The engine's connection ended too early."""

    def start(self) -> None:
        """Send the request to an endpoint, or answer that there is none."""
        model = self._model
        if not model.pool.endpoints:
            route = model.route
            self._answer(nothing_ready(model.name, route.reason, route.retry_after_s))
            return
        if self._stream and model.route.pings:
            self._pinged = True
            self._service.pings.add(self, self._started_at)
        self._attempt(self._started_at)

    def _attempt(self, now: float) -> None:
        tries = self._tries
        # Who comes while others wait goes behind them; who was with an engine already had its turn, and who waits
        # for another engine than this one has no use for room that a newcomer finds.
        endpoint = tries.another(now) if tries.tried or not self._model.admission.ahead else None
        if endpoint is not None:
            self._try(endpoint, now)
        elif self._failure is not None and not tries.may_wait(now):
            self._answer(self._failure)
        else:
            self._wait(now)

    def _wait(self, now: float) -> None:
        """No endpoint has room: take a place in the queue, or hear why there is none."""
        caller, before = self._caller, self._waiter
        waiter = Waiter(
            came_at=now,
            size=len(self._body),
            caller=caller.id,
            priority=caller.priority,
            tried=self._tries.tried,
            admit=self._admitted,
            refuse=self._refused,
        )
        try:
            self._client.deadline = self._model.admission.join(waiter, now, self._ends_at)
        except ApiError as error:
            self._answer(self._failure or error)
            return
        if before is not None:  # it waits again, since an engine failed
            waiter.place, waiter.waited_s = before.place, before.waited_s
        self._waiter = waiter
        if self._pinged and self._request.asks_place:
            self.ping()

    def _admitted(self, model: Model, endpoint: Endpoint, now: float) -> None:
        """It is its turn: `endpoint` has room. `model` may be of a newer table than the one it came under."""
        tries = self._tries
        if model is not self._model:
            self._model = model
            tries.route_by(model)
        if tries.tried and not tries.may_wait(now):
            assert self._failure is not None
            self._answer(self._failure)  # what it may be sent again for was spent by others
            return
        if tries.point is not None:
            endpoint = tries.another(now) or endpoint
        self._try(endpoint, now)

    def _refused(self, error: ApiError) -> None:
        """It waits, and will not have its turn."""
        self._answer(self._failure or error)

    def _try(self, endpoint: Endpoint, now: float) -> None:
        if self._dialect is not None:
            try:
                self._target, self._body = self._dialect.put_to(endpoint, now)
            except ApiError as error:
                self._answer(error)
                return
        self._tries.begin(endpoint, now)
        self._sent = False
        self._endpoint = endpoint
        self._probe = endpoint.begin(now)
        self._send(endpoint, take_idle(endpoint, now), now)

    def _send(self, endpoint: Endpoint, connection: UpstreamConnection | None, now: float) -> None:
        if connection is None:
            self._client.deadline = self._ends_at
            self._connection = connection = UpstreamConnection(endpoint)
            self._dialling = self._service.loop.create_task(self._dial(connection))
            return
        self._connection = connection
        request, body, route = self._request, self._body, endpoint.route
        if route.upstream_model is not None:
            body = replace_model(body, request.content_type, route.upstream_model)
        if self._usage.asks:
            body = self._usage.asking(body, route)
        # In parts, since they are joined with the body at once: each format and each sum would copy them all.
        head = (
            endpoint.asks,
            self._target,
            b" HTTP/1.1\r\n",
            endpoint.head,
            request.lines,
            request.own_line,
            b"content-length: %d\r\n\r\n" % len(body),
        )
        self._sent = True
        due, ends_at = now + self._model.route.first_byte_timeout_s, self._ends_at
        self._client.deadline = due if due < ends_at else ends_at
        connection.send(self, head, body, self._service.late)

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
                self._send(endpoint, connection, monotonic())
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

    def _lost(self, endpoint: Endpoint, reason: str) -> None:
        """The connection to the endpoint ended before any answer began, or what came over it was none."""
        connection = self._connection
        if connection is not None and connection.reused and not connection.parser.received:
            # The engine had closed a kept connection while the request was on its way: that says nothing of it.
            now = monotonic()
            if self._tries.again(now):
                self._send(endpoint, None, now)
                return
        self._attempt_failed(f"it {reason}", died=True)

    def _attempt_failed(self, why: str, *, died: bool, status: int = 502) -> None:
        """This engine will not answer. `died`: it had the request, so that it may have been what killed it."""
        endpoint = self._endpoint
        assert endpoint is not None
        self._endpoint_failed(endpoint, why)
        if died:
            self._tries.died()
        self._leave_endpoint()
        self._head = None
        what = f"{endpoint.id}: {why}"
        if self._failure is None:
            self._failed = [what]
        else:
            self._failed.append(what)
        if died or self._failure is None:
            self._failure = engine_failed(self._model.name, f"the engine {what}", status=status)
        self._attempt(monotonic())

    def _endpoint_failed(self, endpoint: Endpoint, why: str) -> None:
        if endpoint.failed(monotonic(), self._probe):
            log.warning("left alone for a while, since it failed again: endpoint %s, %s", endpoint.id, why)
        self._probe = False

    def _leave_endpoint(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        self._connection = None
        if endpoint is None:
            return
        if endpoint.end(self._probe):
            self._service.endpoint_idle(endpoint)
        if self._model.admission.waiting:
            self._model.admission.room_at(endpoint, monotonic())

    def _hang_up(self) -> None:
        """The engine sees its connection closed, or it is made no more."""
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        if self._connection is not None:
            self._connection.abandon()

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
        elif self._dialect is not None and self._dialect.not_served(head.status, endpoint, monotonic()):
            if self._connection is not None:
                self._connection.abandon()
            self._ask_again(endpoint, self._dialect)
            return True
        self._head = head
        return False

    def _ask_again(self, endpoint: Endpoint, dialect: MessagesDialect) -> None:
        """The engine has no such path, and did nothing: it gets the request in translation."""
        now = monotonic()
        try:
            self._target, self._body = dialect.put_to(endpoint, now)
        except ApiError as error:
            self._leave_endpoint()
            self._answer(error)
            return
        self._sent = False
        self._send(endpoint, take_idle(endpoint, now), now)
