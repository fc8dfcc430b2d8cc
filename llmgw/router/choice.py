"""Which endpoint a request goes to: the less loaded of two that are drawn, or its conversation's own.

Pure: time and randomness are arguments. Two random choices and not the least loaded of all, since several routers
that all know the least loaded one would send everything there (Mitzenmacher, "The power of two choices", 2001).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate

from llmgw.router.affinity import Ring
from llmgw.router.endpoint import UNKNOWN, Endpoint

# How long what endpoints of different weights take together is believed: they get slower and faster over seconds.
SHARES_S = 0.25


class Group:
    """Endpoints that two are drawn of, each as likely as its capacity."""

    __slots__ = ("_cumulative", "_even", "endpoints")

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self.endpoints = endpoints
        self._cumulative = list(accumulate(endpoint.capacity for endpoint in endpoints))
        self._even = len(endpoints) > 1 and len({endpoint.capacity for endpoint in endpoints}) == 1

    def draw(self, rand: Callable[[], float]) -> tuple[Endpoint, Endpoint]:
        """Two different ones; twice the same where there is only one."""
        endpoints = self.endpoints
        if not self._even:
            return draw_two(endpoints, self._cumulative, rand)
        count = len(endpoints)
        if count == 2:
            first, second = endpoints
            return (first, second) if rand() < 0.5 else (second, first)
        one = int(rand() * count)
        other = int(rand() * (count - 1))
        return endpoints[one], endpoints[other + (other >= one)]


class Pool:
    """A model's endpoints, and what they take in proportion to each other.

    A weight says how requests are divided, also where all could take more: compared by load, one with a tenth of
    the others' weight would get nothing until they have ten times as much to do. So a weight is drawn first, as
    likely as its endpoints' shares together, and then two endpoints that have it.
    """

    __slots__ = ("_groups", "_only", "_shares", "_shares_until", "endpoints", "ring")

    def __init__(self, endpoints: list[Endpoint], ring: Ring | None = None) -> None:
        """`ring` is over these endpoints, for models whose conversations come back to theirs."""
        self.endpoints = endpoints
        self.ring = ring
        by_weight: dict[float, list[Endpoint]] = {}
        for endpoint in endpoints:
            by_weight.setdefault(endpoint.route.weight, []).append(endpoint)
        if len(by_weight) > 1:
            by_weight.pop(0.0, None)
        self._groups = [Group(each) for each in by_weight.values()]
        self._only = self._groups[0] if len(self._groups) == 1 else None
        self._shares: list[float] = []
        self._shares_until = -math.inf

    def _group(self, now: float, rand: Callable[[], float]) -> Group:
        groups = self._groups
        if now >= self._shares_until:
            self._shares_until = now + SHARES_S
            self._shares = list(
                accumulate(
                    sum(each.share(now) for each in group.endpoints if each.breaker.available(now))
                    for group in groups
                )
            )
        return groups[min(bisect_right(self._shares, rand() * self._shares[-1]), len(groups) - 1)]

    def choose(
        self, now: float, tried: Collection[Endpoint], rand: Callable[[], float], point: int | None = None
    ) -> Endpoint | None:
        """An endpoint that has not been tried; None when none is left, or those that are left are full.

        Endpoints whose breaker is open are left out, unless all are: then the one that opens first is tried. What
        has been tried already goes to one that has not failed lately, since there may be no third (invariant 8).
        `point` is where the request's conversation stands on the ring, `rand` is uniform in [0, 1).
        """
        if point is not None and self.ring is not None:
            own = self.ring.find(point, now, tried)
            if own is not None and not (tried and own.failing(now)):
                return own
        endpoints = self.endpoints
        if not tried and endpoints:
            first, second = (self._only or self._group(now, rand)).draw(rand)
            one, two = first.outstanding, second.outstanding
            # As `usable`, which need not be called while no breaker is open.
            if (
                one < first.concurrency
                and two < second.concurrency
                and (not first.breaker.open_until or first.breaker.available(now))
                and (not second.breaker.open_until or second.breaker.available(now))
            ):
                # As `pressure`, which says the same of two that take as much and are neither new nor failing.
                if (
                    first.slow_since is not None
                    or second.slow_since is not None
                    or first.failure_load
                    or second.failure_load
                    or first.capacity != second.capacity
                ):
                    return less_pressed(first, second, now)
                if one != two:
                    return first if one < two else second
                return first if first.strain == second.strain else calmer(first, second, now)
        left = [endpoint for endpoint in endpoints if endpoint not in tried]
        usable = [endpoint for endpoint in left if endpoint.usable(now)]
        if usable:
            usable = [endpoint for endpoint in usable if endpoint.route.weight] or usable
            if tried:
                usable = [endpoint for endpoint in usable if not endpoint.failing(now)] or usable
            if len(self._groups) > 1:
                usable = draw_weight(usable, now, rand)
            first, second = draw_two(usable, list(accumulate(each.capacity for each in usable)), rand)
            return less_pressed(first, second, now)
        if any(not endpoint.breaker.open_until for endpoint in left):
            return None  # full
        return min(
            (endpoint for endpoint in left if endpoint.outstanding < endpoint.concurrency),
            key=lambda endpoint: (endpoint.breaker.open_until, endpoint.pressure(now)),
            default=None,
        )


def less_pressed(first: Endpoint, second: Endpoint, now: float) -> Endpoint:
    """Of two, the one that would be less loaded by one more request."""
    one, two = first.pressure(now), second.pressure(now)
    return calmer(first, second, now) if one == two else first if one < two else second


def calmer(first: Endpoint, second: Endpoint, now: float) -> Endpoint:
    """Of two that have equally much from this router: by what both engines say of themselves.

    That is seconds old and the same for every router: were it to say more, they would all go to one place.
    """
    if second.strain >= first.strain or second.strain == UNKNOWN:
        return first
    return second if now < first.strain_until and now < second.strain_until else first


def draw_weight(endpoints: list[Endpoint], now: float, rand: Callable[[], float]) -> list[Endpoint]:
    """Those of one weight, which is as likely as their shares together."""
    parts: dict[float, float] = {}
    for endpoint in endpoints:
        weight = endpoint.route.weight
        parts[weight] = parts.get(weight, 0.0) + endpoint.share(now)
    if len(parts) == 1:
        return endpoints
    at = rand() * sum(parts.values())
    drawn = 0.0
    for weight, part in parts.items():
        drawn = weight
        at -= part
        if at < 0.0:
            break
    return [endpoint for endpoint in endpoints if endpoint.route.weight == drawn]


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
    """Set what each takes: its concurrency, or the mean of those where it has none, times its weight.

    Those of weight 0 are only ever compared with each other.
    """
    known = [endpoint.route.concurrency for endpoint in endpoints if endpoint.route.concurrency is not None]
    mean = sum(known) / len(known) if known else 1.0
    for endpoint in endpoints:
        own = endpoint.route.concurrency
        endpoint.capacity = (mean if own is None else float(own)) * (endpoint.route.weight or 1.0)
