"""Limits that all routers hold together: which part each router has, so that the parts never exceed a limit.

Pure. A part is taken from one router before it is given to another: only when a router has acknowledged that its
part is smaller, and what it had running beyond that has ended, is the difference there to be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.server.shares import split

PRESSED = 0.75
"""A limit is divided anew once a router uses so much of its part, or has something waiting for it."""
MATERIAL_PARTS = 16
"""Parts stay as they are while none would change by a sixteenth of the limit."""


@dataclass(frozen=True)
class Parts:
    """What a router goes by: a part of its own of some limits (by name), of the others one of so many."""

    workers: int = 1
    own: Mapping[str, int] = field(default_factory=dict)

    def part(self, name: str, limit: int) -> int:
        """As the router reckons it: at least 1."""
        own = self.own.get(name)
        return max(1, limit // self.workers) if own is None else max(1, min(own, limit))


class _Router:
    def __init__(self, parts: Parts) -> None:
        self.acked = parts
        self.sent = parts
        self.heard = False
        """It has said what it has running: that may be more than its part."""
        self.used: Mapping[str, int] = {}
        self.waiting: Mapping[str, float] = {}

    @property
    def settled(self) -> bool:
        """It goes by what it was sent last."""
        return self.sent is self.acked

    def held(self, name: str, limit: int) -> int:
        """What it may be using now, or use before it hears of anything else."""
        if not self.heard:
            return limit
        return max(self.acked.part(name, limit), self.sent.part(name, limit), self.used.get(name, 0))

    def demand(self, name: str) -> float:
        return self.used.get(name, 0) + self.waiting.get(name, 0.0)

    def presses(self, name: str, limit: int) -> bool:
        part = self.sent.part(name, limit)
        return bool(self.waiting.get(name)) or self.used.get(name, 0) >= part * PRESSED


class DividedLimits:
    """Limits by name, and each router's parts of them."""

    def __init__(self) -> None:
        self._routers: dict[str, _Router] = {}
        self._limits: Mapping[str, int] = {}

    def joined(self, router: str, parts: Parts) -> None:
        """A router is there, new or once more, and goes by these parts."""
        self._routers[router] = _Router(parts)

    def left(self, router: str) -> None:
        """Its process has ended, and all that it had running with it."""
        self._routers.pop(router, None)

    def used(self, router: str, used: Mapping[str, int], waiting: Mapping[str, float], *, acked: bool) -> None:
        """What it has running and waiting, by limit. `acked`: it goes by what it was sent last."""
        known = self._routers.get(router)
        if known is not None:
            known.heard = True
            known.used = used
            known.waiting = waiting
            if acked:
                known.acked = known.sent

    def sent(self, router: str) -> Parts:
        """What a router was sent last, or goes by since it joined. Raises KeyError for one that is not there."""
        return self._routers[router].sent

    def divide(self, limits: Mapping[str, int], workers: int) -> dict[str, Parts]:
        """What to send now, by router: nothing to those that have not acknowledged what they were sent before.

        `workers`: of what they have no own part of, they have one of so many; 0: as they were told when they were
        started.
        What is sent is to be acknowledged through `used`.
        """
        self._forget_others(limits)
        settled = {name: router for name, router in self._routers.items() if router.settled}
        changed: dict[str, dict[str, int]] = {}
        for limit_name in self._pressed(limits, settled):
            self._divide_one(limit_name, limits[limit_name], settled, changed)
        out: dict[str, Parts] = {}
        for name, router in settled.items():
            count = workers or router.sent.workers
            if name not in changed and count == router.sent.workers:
                continue
            own = {**router.sent.own, **changed.get(name, {})}
            router.sent = out[name] = Parts(count, own)
        return out

    def _forget_others(self, limits: Mapping[str, int]) -> None:
        """Routers drop their parts of a limit that has changed or gone, when they hear of that."""
        if limits is self._limits:
            return
        gone = {name for name, limit in self._limits.items() if limits.get(name) != limit}
        self._limits = limits
        for router in self._routers.values():
            settled = router.settled
            if not gone.isdisjoint(router.acked.own):
                own = {name: part for name, part in router.acked.own.items() if name not in gone}
                router.acked = Parts(router.acked.workers, own)
            if settled:
                router.sent = router.acked
            elif not gone.isdisjoint(router.sent.own):
                own = {name: part for name, part in router.sent.own.items() if name not in gone}
                router.sent = Parts(router.sent.workers, own)

    def _pressed(self, limits: Mapping[str, int], settled: Mapping[str, _Router]) -> set[str]:
        return {
            name
            for router in settled.values()
            for name in (*router.used, *router.waiting)
            if name in limits and router.presses(name, limits[name])
        }

    def _divide_one(
        self, name: str, limit: int, settled: Mapping[str, _Router], changed: dict[str, dict[str, int]]
    ) -> None:
        wanted = split(limit, {each: router.demand(name) for each, router in self._routers.items()})
        lacking = {each: wanted[each] - router.sent.part(name, limit) for each, router in settled.items()}
        if max(map(abs, lacking.values())) <= limit // MATERIAL_PARTS:
            return
        free = max(0, limit - sum(router.held(name, limit) for router in self._routers.values()))
        for each, lack in sorted(lacking.items(), key=lambda item: -item[1]):
            part, held = settled[each].sent.part(name, limit), settled[each].held(name, limit)
            new = min(part + lack, held + free) if lack > 0 else part + lack
            if new != part:
                changed.setdefault(each, {})[name] = new
                free -= max(0, new - held)
