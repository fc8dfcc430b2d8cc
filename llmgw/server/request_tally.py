"""Counts what the routers saw of finished requests, by model, for as long as this process lives.

Bounded: a series for each model of the catalog and one for the rest, whatever clients ask for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from llmgw.messages.routes import Outcome

OTHER = "(other)"
"""The model of requests that named none of the catalog's; no model can be called so."""

BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Upper bounds of the histograms' buckets: from a cached token to the longest generation."""

CLIENT_LEFT = 499


@dataclass(slots=True)
class Histogram:
    """Durations in seconds, counted by bucket: `counts[i]` lie above the bound before and up to `BOUNDS_S[i]`,
    the last beyond all of them."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    def add(self, duration_s: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, how many were at most that), `+Inf` last, as Prometheus wants its buckets."""
        buckets, so_far = [], 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self.counts, strict=True):
            so_far += count
            buckets.append((bound, so_far))
        return buckets


@dataclass(slots=True)
class ModelTally:
    """One model's requests since the start of this process."""

    by_status: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    retries_refused: int = 0
    first_byte: Histogram = field(default_factory=Histogram)
    total: Histogram = field(default_factory=Histogram)
    queued: Histogram = field(default_factory=Histogram)
    """Of those that waited for an engine to have room."""


class RequestTally:
    """Fed with the routers' outcomes."""

    def __init__(self) -> None:
        self.models: dict[str, ModelTally] = {}
        self.dropped = 0
        """Outcomes that routers threw away because nobody read them: what is counted here is short by them."""

    def take(self, outcomes: Iterable[Outcome], dropped: int, known: Collection[str]) -> None:
        """Count outcomes. `known` are the catalog's models; what names another is counted together."""
        self.dropped += dropped
        for outcome in outcomes:
            name = outcome.model if outcome.model in known else OTHER
            model = self.models.get(name)
            if model is None:
                model = self.models[name] = ModelTally()
            status = status_class(outcome.status)
            model.by_status[status] = model.by_status.get(status, 0) + 1
            model.retries += outcome.retries
            model.retries_refused += outcome.retry_refused
            if outcome.first_byte_s is not None:
                model.first_byte.add(outcome.first_byte_s)
            if outcome.model:  # what was refused before its model was known took no time that is anybody's
                model.total.add(outcome.total_s)
            if outcome.queued_s:
                model.queued.add(outcome.queued_s)

    def keep(self, known: Collection[str]) -> None:
        """Forget the models that have left the catalog."""
        for name in [name for name in self.models if name not in known and name != OTHER]:
            del self.models[name]


def status_class(status: int) -> str:
    """`2xx`, `4xx`, …; `client_left` for a client that went away first, which is nobody's error."""
    if status == CLIENT_LEFT:
        return "client_left"
    return f"{status // 100}xx" if 100 <= status < 600 else "5xx"
