"""Durations counted by bucket, as Prometheus wants them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

REQUEST_BOUNDS_S = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
)
"""From a cached token to the longest generation."""
TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
"""From one token to the next: from a small model to an engine that is too full."""
TURN_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""What the server computes at a time."""
CALL_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Calls between agents and the server."""
START_BOUNDS_S = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0)
"""From a replica's placement to its first answer, downloads included."""


@dataclass(slots=True)
class Histogram:
    """`counts[i]` lie above the bound before and up to `bounds_s[i]`, the last beyond all of them; in seconds."""

    bounds_s: tuple[float, ...] = REQUEST_BOUNDS_S
    counts: list[int] = field(default_factory=list)
    total_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds_s) + 1)

    def add(self, duration_s: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.total_s += duration_s

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, how many were at most that), `+Inf` last."""
        buckets, so_far = [], 0
        for bound, count in zip([*map(str, self.bounds_s), "+Inf"], self.counts, strict=True):
            so_far += count
            buckets.append((bound, so_far))
        return buckets
