"""Counts what happens to the fleet, for as long as this process lives: the events that history keeps. Pure.

Bounded: events are words of this program, and models those of the catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from llmgw.fleet.events import Event
from llmgw.metrics.family import OTHER
from llmgw.metrics.histogram import START_BOUNDS_S, Histogram

EVENTS_MAX = 200
"""Distinct (kind, event); there are some fifty."""
PLACED_MAX = 10_000
_OVER = frozenset({"failed", "stopped", "reaped", "stopping"})


class TransitionTally:
    """Fed with events in their order."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        """(kind, event) → how often."""
        self.failures: dict[str, int] = {}
        """Model → replicas that failed."""
        self.starts: dict[str, Histogram] = {}
        """Model → how long its replicas took from being placed to their first answer."""
        self._placed: dict[str, float] = {}

    def take(self, events: Iterable[Event], now: float) -> None:
        """Count events that happened at `now` of the monotonic clock."""
        for event in events:
            at = event.kind, event.event
            if at not in self.counts and len(self.counts) >= EVENTS_MAX:
                at = OTHER, OTHER
            self.counts[at] = self.counts.get(at, 0) + 1
            if event.kind == "replica" and event.model is not None:
                self._of_replica(event, event.model, now)

    def keep(self, known: Collection[str]) -> None:
        """Forget the models that have left the catalog, and count those in it from 0 on."""
        self.failures = {model: self.failures.get(model, 0) for model in known}
        self.starts = {model: self.starts.get(model) or Histogram(START_BOUNDS_S) for model in known}

    def _of_replica(self, event: Event, model: str, now: float) -> None:
        if event.event == "starting":
            self._placed[event.subject] = now
            if len(self._placed) > PLACED_MAX:
                del self._placed[next(iter(self._placed))]
        elif event.event == "ready":
            placed_at = self._placed.pop(event.subject, None)
            if placed_at is not None:
                histogram = self.starts.setdefault(model, Histogram(START_BOUNDS_S))
                histogram.add(max(0.0, now - placed_at))
        elif event.event in _OVER:
            self._placed.pop(event.subject, None)
        if event.event == "failed":
            self.failures[model] = self.failures.get(model, 0) + 1
