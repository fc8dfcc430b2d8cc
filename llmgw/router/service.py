"""What the connections of one router process share: limits, table, telemetry, and the sweep over deadlines."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from time import monotonic

from llmgw.messages.routes import Outcome, RouterShare, RouteTable
from llmgw.pki.system_trust import system_context
from llmgw.router.affinity import point_of
from llmgw.router.caller import ANYBODY, Caller
from llmgw.router.client import ClientConnection
from llmgw.router.cors import Cors
from llmgw.router.endpoint import Endpoint
from llmgw.router.errors import ApiError, not_yet_known, unknown_model
from llmgw.router.exchange import Exchange
from llmgw.router.fields import read_fields
from llmgw.router.forwarded import TrustedProxies
from llmgw.router.keys import Keys
from llmgw.router.late import LateWrites
from llmgw.router.limits import SWEEP_S, UPSTREAM_IDLE_S, Limits
from llmgw.router.pings import Pings
from llmgw.router.request import Request
from llmgw.router.request_reader import BodyBudget
from llmgw.router.seldom import Seldom
from llmgw.router.table import RoutingTable
from llmgw.router.telemetry import TelemetryLog
from llmgw.router.upstream import close_idle
from llmgw.router.usage import usage_of

log = logging.getLogger(__name__)


class Service:
    """The data plane of one process. Make it inside the running event loop."""

    def __init__(
        self,
        limits: Limits,
        *,
        cors: Cors | None = None,
        proxies: TrustedProxies | None = None,
        new_exchange: Callable[..., Exchange] = Exchange,
    ) -> None:
        """`new_exchange` is called as `Exchange` is, and makes one that may do more."""
        self._new_exchange = new_exchange
        self.cors = cors
        self.proxies = proxies
        self.limits = limits.share(limits.workers)
        self._limits_together = limits
        self.loop = asyncio.get_running_loop()
        self.table = RoutingTable(idle_limit_s=UPSTREAM_IDLE_S, workers=self.limits.workers)
        self.keys = Keys(limits.workers)
        self.telemetry = TelemetryLog()
        self.late = LateWrites(self.loop)
        self.clients: set[ClientConnection] = set()
        self.overflowing = 0
        """How many of them are beyond `connections_max` and only wait to hear so."""
        self.bodies = BodyBudget(self.limits.bodies_bytes_max)
        """Of all request bodies that are being read or may have to be sent again."""
        self.pings = Pings(limits.ping_s)
        self.draining = False
        self.notify: Callable[[bool], None] = lambda at_once: None
        """Called when the control process should hear soon (False) or at once (True)."""
        self.cannot_connect = Seldom(log)
        self._tls_context: ssl.SSLContext | None = None

    def accept(self) -> ClientConnection:
        """The protocol for one more client."""
        return ClientConnection(self)

    def share(self, share: RouterShare) -> None:
        """From now on this router has that part of the limits."""
        if share.workers:
            self.limits = self._limits_together.share(share.workers)
            self.bodies.bytes_max = self.limits.bodies_bytes_max
        now = monotonic()
        self.keys.share(share.keys, self.limits.workers, now)
        self.table.share(self.limits.workers, share.endpoints)
        if share.number == self.telemetry.share:
            return
        self.telemetry.share = share.number
        for model in self.table.each_model():
            model.admission.look(now)
        self.notify(True)

    def open_exchange(self, client: ClientConnection, request: Request) -> Exchange:
        """Find the caller and the model that a request names. Raises ApiError, which is recorded."""
        caller = request.caller
        try:
            caller = self.keys.caller(request)
            fields = read_fields(request.body, request.content_type)
            model = self.table.models.get(fields.model)
            if model is None:
                if self.table.snapshot is None:
                    raise not_yet_known()
                models = self.table.models
                raise unknown_model(fields.model, sorted(n for n in models if caller.may_use(models[n].name)))
            point = None
            if model.pool.ring is not None:
                point = point_of(fields, request.session)
            now = monotonic()
            request.answer_lines = caller.begin(model.name, now)
            usage = usage_of(request.path, fields, len(request.body))
            stream = bool(fields.stream)
            try:
                return self._new_exchange(self, client, request, model, stream, usage, now, point, caller)
            except ApiError:
                caller.refused(now)
                raise
        except ApiError as error:
            self.record_refusal(error, caller, request.request_id.decode())
            raise

    def record_refusal(self, error: ApiError, caller: Caller = ANYBODY, request_id: str = "") -> None:
        """A request that named no model that is known: its name is the client's word, and is not kept."""
        self.telemetry.record(
            Outcome(
                model="",
                endpoint=None,
                status=error.status,
                error=error.code,
                key=caller.id,
                request_id=request_id,
            )
        )

    def apply(self, table: RouteTable) -> bool:
        """Route by this table from now on, if it is newer."""
        now = monotonic()
        waited_for = [model for model in self.table.each_model() if model.admission.waiting]
        applied = self.table.apply(table, now)
        if applied:
            self.keys.apply(table, now)
            models = {model.name: model for model in self.table.each_model()}
            for model in waited_for:
                model.admission.judge(partial(self.keys.refusal, model=model.name), now)
                model.admission.moved(models.get(model.name), model.name, sorted(self.table.models), now)
            for problem in self.table.problems:
                log.warning("left out of the route table: %s", problem)
            for endpoint in self.table.endpoints():
                if endpoint.retired:
                    close_idle(endpoint, now)
        return applied

    def endpoint_idle(self, endpoint: Endpoint) -> None:
        """The last request of an endpoint is over; when it is routed to no more, somebody waits for that."""
        self.notify(endpoint.retired)

    def tls_context(self) -> ssl.SSLContext:
        """For static endpoints behind https: the system's authorities, host names checked."""
        if self._tls_context is None:
            self._tls_context = system_context()
            self._tls_context.set_alpn_protocols(["http/1.1"])
        return self._tls_context

    async def sweep(self) -> None:
        """Look at every deadline a few times a second: cheaper than a timer for each request."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = monotonic()
            due = [c for c in self.clients if c.deadline <= now or c.stall_deadline <= now]
            for client in due:
                client.deadline_passed(now)
            for endpoint in self.table.endpoints():
                if endpoint.idle:
                    close_idle(endpoint, now)
            self.table.forget_retired()
            self.pings.sweep(now)
            for model in self.table.each_model():
                if model.admission.waiting:
                    model.admission.look(now)

    async def drain(self, drain_s: float) -> None:
        """Let what runs end, for at most so long; the listener is closed already."""
        self.draining = True
        until = monotonic() + drain_s
        for client in list(self.clients):
            client.drain()
        while self.clients and monotonic() < until:  # noqa: ASYNC110 (an event would cost every request)
            await asyncio.sleep(0.05)
        if self.clients:
            log.warning("%d connections were cut: they did not end within %g s", len(self.clients), drain_s)
        for client in list(self.clients):
            client.cut()
