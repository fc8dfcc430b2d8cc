"""Collects what the control process wants to know, bounded, until somebody reads it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from llmgw.messages.routes import KeyDemand, Outcome, Telemetry
from llmgw.router.limits import OUTCOMES_MAX
from llmgw.router.table import RoutingTable
from llmgw.router.usage_ledger import UsageLedger


class TelemetryLog:
    """Outcomes and signs of life since the last frame. Memory is bounded by OUTCOMES_MAX and by the table."""

    def __init__(self, *, outcomes_max: int = OUTCOMES_MAX) -> None:
        self.usage = UsageLedger()
        """What requests took, kept until it is acknowledged."""
        self._refused: set[str] = set()
        self._outcomes: deque[Outcome] = deque(maxlen=outcomes_max)
        self._recorded = 0
        """How many outcomes there were since the last frame, those that were dropped included."""
        self._many = max(1, outcomes_max // 2)
        self.many: Callable[[], None] = lambda: None
        """Called when half of what is kept is there: at ten thousand requests a second that is sooner than a
        frame is due."""
        self.spans: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """How many spans of traces were sent in all, and how many dropped."""
        self._spans_told = (0, 0)
        self.share = 0
        """The number of the share that this router goes by."""

    def record(self, outcome: Outcome) -> None:
        """Keep an outcome; the oldest goes, and is counted, when there are too many."""
        self._recorded = recorded = self._recorded + 1
        self._outcomes.append(outcome)
        if recorded == self._many:
            self.many()
        if outcome.model:
            self.usage.add(outcome, time.time())

    def refused(self, endpoint_id: str) -> None:
        """A connection to this endpoint could not be made."""
        self._refused.add(endpoint_id)

    def take(
        self,
        table: RoutingTable,
        now: float,
        *,
        draining: bool = False,
        keys: Mapping[str, KeyDemand] | None = None,
    ) -> Telemetry:
        """Everything since the last call, as one frame's message."""
        before, spans = self._spans_told, self.spans()
        self._spans_told = spans
        telemetry = Telemetry(
            acked=table.version,
            in_flight=table.in_flight(),
            alive=table.take_alive(),
            refused=sorted(self._refused),
            outcomes=list(self._outcomes),
            dropped=self._recorded - len(self._outcomes),
            breakers=dict(table.breakers(now)),
            draining=draining,
            queued=table.queued(),
            share=self.share,
            usage=self.usage.take(now),
            keys=dict(keys or {}),
            spans_sent=spans[0] - before[0],
            spans_dropped=spans[1] - before[1],
        )
        self._refused.clear()
        self._outcomes.clear()
        self._recorded = 0
        return telemetry
