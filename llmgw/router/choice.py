"""Which endpoint a request goes to: the less loaded of two that are drawn, or its conversation's own.

Pure: time and randomness are arguments. Two random choices and not the least loaded of all, since several routers
that all know the least loaded one would send everything there (Mitzenmacher, "The power of two choices", 2001).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate

from llmgw.router.affinity import Ring
from llmgw.router.endpoint import Endpoint


class Pool:
    """A model's endpoints, and what they take in proportion to each other."""

    __slots__ = ("_cumulative", "_even", "endpoints", "ring")

    def __init__(self, endpoints: list[Endpoint], ring: Ring | None = None) -> None:
        """`ring` is over these endpoints, for models whose conversations come back to theirs."""
        self.endpoints = endpoints
        self.ring = ring
        self._cumulative = list(accumulate(endpoint.capacity for endpoint in endpoints))
        self._even = len(endpoints) > 1 and len({endpoint.capacity for endpoint in endpoints}) == 1

    def _draw(self, rand: Callable[[], float]) -> tuple[Endpoint, Endpoint]:
        endpoints = self.endpoints
        if not self._even:
            return draw_two(endpoints, self._cumulative, rand)
        count = len(endpoints)
        one = int(rand() * count)
        other = int(rand() * (count - 1))
        return endpoints[one], endpoints[other + (other >= one)]

    def choose(
        self, now: float, tried: Collection[Endpoint], rand: Callable[[], float], point: int | None = None
    ) -> Endpoint | None:
        """An endpoint that has not been tried; None when none is left, or those that are left are full.

        Endpoints whose breaker is open are left out, unless all are: then the one that opens first is tried.
        `point` is where the request's conversation stands on the ring, `rand` is uniform in [0, 1).
        """
        if point is not None and self.ring is not None:
            own = self.ring.find(point, now, tried)
            if own is not None:
                return own
        endpoints = self.endpoints
        if not tried:
            first, second = self._draw(rand)
            if first.usable(now) and second.usable(now):
                return second if second.pressure(now) < first.pressure(now) else first
        left = [endpoint for endpoint in endpoints if endpoint not in tried]
        usable = [endpoint for endpoint in left if endpoint.usable(now)]
        if usable:
            first, second = draw_two(usable, list(accumulate(each.capacity for each in usable)), rand)
            return second if second.pressure(now) < first.pressure(now) else first
        if any(not endpoint.breaker.open_until for endpoint in left):
            return None  # full
        return min(
            (endpoint for endpoint in left if endpoint.outstanding < endpoint.concurrency),
            key=lambda endpoint: (endpoint.breaker.open_until, endpoint.pressure(now)),
            default=None,
        )


def draw_two(
    endpoints: Sequence[Endpoint], cumulative: Sequence[float], rand: Callable[[], float]
) -> tuple[Endpoint, Endpoint]:
    """Two different ones, each as likely as its capacity; twice the same where there is only one.

    `cumulative` are their capacities, summed up.
    """
    last = len(endpoints) - 1
    if not last:
        return endpoints[0], endpoints[0]
    total = cumulative[last]
    one = min(bisect_right(cumulative, rand() * total), last)
    # The second is drawn from what the first leaves of the line.
    begin = cumulative[one - 1] if one else 0.0
    length = cumulative[one] - begin
    at = rand() * (total - length)
    other = min(bisect_right(cumulative, at + length if at >= begin else at), last)
    if other == one:  # only by rounding, at the ends of its part
        other = one - 1 if one else 1
    return endpoints[one], endpoints[other]


def share_capacity(endpoints: Sequence[Endpoint]) -> None:
    """Set what each takes: its concurrency, and the mean of those where it has none."""
    known = [endpoint.route.concurrency for endpoint in endpoints if endpoint.route.concurrency is not None]
    mean = sum(known) / len(known) if known else 1.0
    for endpoint in endpoints:
        own = endpoint.route.concurrency
        endpoint.capacity = mean if own is None else float(own)
