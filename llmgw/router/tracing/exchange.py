"""An exchange that notes in a span what becomes of it. While tracing is off, no exchange is of this class."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from llmgw.messages.routes import Outcome
from llmgw.router.caller import ANYBODY, Caller
from llmgw.router.endpoint import Endpoint
from llmgw.router.exchange import Exchange
from llmgw.router.request import Request
from llmgw.router.table import Model
from llmgw.router.tracing.spans import Span, Tracer
from llmgw.router.upstream import UpstreamConnection
from llmgw.router.usage import RequestUsage

if TYPE_CHECKING:
    from llmgw.router.client import ClientConnection
    from llmgw.router.service import Service

ERROR_CHARS_MAX = 500


class TracedExchange(Exchange):
    """Made where tracing is on; `_span` is None for a request that is not in the sample."""

    __slots__ = ("_span", "_tracer")

    def __init__(
        self,
        tracer: Tracer,
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
        self._tracer = tracer
        self._span: Span | None = tracer.begin(request, now)
        super().__init__(service, client, request, model, stream, usage, now, point, caller)

    def _wait(self, now: float) -> None:
        if self._span is not None:
            self._span.note("queued", now)
        super()._wait(now)

    def _try(self, endpoint: Endpoint, now: float) -> None:
        if self._span is not None:
            self._span.note("engine chosen", now, **{"llmgw.endpoint": endpoint.id})
        super()._try(endpoint, now)

    def _send(self, endpoint: Endpoint, connection: UpstreamConnection | None, now: float) -> None:
        span = self._span
        if span is not None:
            if connection is None:
                span.dials(now)
            else:
                if span.dialled(now):
                    span.note("connected", now)
                span.note("request sent", now)
        super()._send(endpoint, connection, now)

    def _attempt_failed(self, why: str, *, died: bool, status: int = 502) -> None:
        span = self._span
        if span is not None:
            now = monotonic()
            span.dialled(now)
            span.note("engine failed", now, **{"error.message": why[:ERROR_CHARS_MAX]})
        super()._attempt_failed(why, died=died, status=status)

    def _first_byte(self, now: float, done: bool) -> None:
        if self._span is not None:
            self._span.note("first byte", now)
        super()._first_byte(now, done)

    def _record(
        self, status: int, now: float, error: str | None = None, endpoint: Endpoint | None = None
    ) -> Outcome:
        outcome = super()._record(status, now, error, endpoint)
        span = self._span
        if span is not None:
            self._span = None
            span.finished(outcome, now)
            self._tracer.hand_on(span)
        return outcome
