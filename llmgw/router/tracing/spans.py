"""Which requests are traced, and what is noted of each while it runs: a few tuples, nothing of its content."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from llmgw.messages.routes import Outcome
from llmgw.router.request import Request
from llmgw.router.tracing.context import parent_of, with_parent, write_traceparent

EVENTS_MAX = 32
_RATIO_BITS = 64


class SpanEvent(NamedTuple):
    """Something that happened, `at` seconds of the monotonic clock."""

    name: str
    at: float
    attributes: dict[str, str | float]


class Span:
    """One request that is traced, from its arrival until it is `finished`."""

    __slots__ = (
        "_dials_since",
        "began",
        "connect_s",
        "ended",
        "events",
        "method",
        "outcome",
        "parent_id",
        "path",
        "request_id",
        "span_id",
        "trace_id",
        "wall_less_monotonic",
    )

    def __init__(
        self, trace_id: int, span_id: int, parent_id: int | None, request: Request, began: float
    ) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.method = request.method.decode("latin-1")
        self.path = request.path
        self.request_id = request.request_id.decode("latin-1")
        self.began = self.ended = began
        self.wall_less_monotonic = time.time() - time.monotonic()
        self.events: list[SpanEvent] = []
        self.connect_s = 0.0
        """How long connections were waited for, those that failed included."""
        self.outcome: Outcome | None = None
        self._dials_since: float | None = None

    def note(self, name: str, now: float, **attributes: str | float) -> None:
        """Something happened; what is beyond `EVENTS_MAX` is left out."""
        if len(self.events) < EVENTS_MAX:
            self.events.append(SpanEvent(name, now, attributes))

    def dials(self, now: float) -> None:
        """A connection to an engine is made."""
        self._dials_since = now

    def dialled(self, now: float) -> bool:
        """The dialling, if there was one, is over; True if there was."""
        since, self._dials_since = self._dials_since, None
        if since is None:
            return False
        self.connect_s += now - since
        return True

    def finished(self, outcome: Outcome, now: float) -> None:
        """The request is over."""
        self.dialled(now)
        self.outcome, self.ended = outcome, now


class Tracer:
    """Decides which requests are traced and hands their spans on. `hand_on` must not block."""

    def __init__(self, sample: float, hand_on: Callable[[Span], None]) -> None:
        """`sample` is the share of requests that are traced where no client has decided that."""
        self._bound = int(sample * 2**_RATIO_BITS)
        self.hand_on = hand_on

    def begin(self, request: Request, now: float) -> Span | None:
        """The span of a request that came `now`; None for one that is not traced. Its header lines for the engine
        say what it belongs to from here on."""
        parent = parent_of(request.lines)
        if parent is not None and not parent.sampled:
            return None  # its client has said no, and the engine is told so by the same words
        trace_id = parent.trace_id if parent is not None else random.getrandbits(128) or 1
        # By the trace's id, so that others who trace the same share choose the same ones.
        sampled = parent is not None or (trace_id & (2**_RATIO_BITS - 1)) < self._bound
        span_id = random.getrandbits(64) or 1
        request.lines = with_parent(request.lines, parent, write_traceparent(trace_id, span_id, sampled))
        if not sampled:
            return None
        return Span(trace_id, span_id, parent.span_id if parent is not None else None, request, now)
