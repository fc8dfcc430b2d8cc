"""The requests that wait for an engine of one model to have room: who is next, and who must go when it is full.

Pure: it knows neither clock nor socket. Joining, leaving and being next cost the same however many wait; only a
full queue looks at each caller in it, for a newcomer whose caller has less than its part.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from typing import Any

PASSED_MAX = 10
"""A priority that waits is passed by so many starts of higher ones, and then has one itself."""


class Waiter:
    """One request that waits.

    `tried` are the endpoints that it must not be sent to again. `admit` is called when it is its turn, `refuse`
    when it will have none. `place` says about which one it was when it came, 1 for the next. `waited_s` is what
    it had waited before that, and once it does not wait any more how long it has in all.
    """

    __slots__ = (
        "admit",
        "caller",
        "came_at",
        "number",
        "place",
        "priority",
        "refuse",
        "size",
        "tried",
        "waited_s",
        "waits",
    )

    def __init__(
        self,
        *,
        came_at: float,
        size: int = 0,
        caller: str = "",
        priority: int = 0,
        tried: Collection[Any] = (),
        admit: Callable[..., None],
        refuse: Callable[..., None],
    ) -> None:
        self.came_at = came_at
        self.size = size
        self.caller = caller
        self.priority = priority
        self.tried = tried
        self.admit = admit
        self.refuse = refuse
        self.number = 0
        self.place = 0
        self.waited_s = 0.0
        self.waits = False
        """It is in the queue."""


class _Line:
    """What one caller has waiting at one priority, in order of arrival."""

    __slots__ = ("bytes", "joined", "left", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.bytes = 0
        self.joined = 0
        self.left = 0
        """How many were taken from its head."""


class _Level:
    """One priority: its callers take turns, the first of `lines` is next."""

    __slots__ = ("count", "lines", "passed", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.lines: OrderedDict[str, _Line] = OrderedDict()
        self.count = 0
        self.passed = 0


class FairQueue:
    """Higher priorities first, each by PASSED_MAX at most ahead of a lower one; callers of the same priority take
    turns, one request each; a caller's own requests in order of arrival.

    Requests that were with an engine already and must be sent to another go before all of them, and are not
    counted in `bytes` nor against a limit: they had their turn.
    """

    __slots__ = ("_again", "_by_priority", "_levels", "bytes", "count")

    def __init__(self) -> None:
        self.count = 0
        """How many wait, those that are sent again included."""
        self.bytes = 0
        self._again: OrderedDict[Waiter, None] = OrderedDict()
        self._levels: list[_Level] = []
        """Those with somebody waiting, the highest first."""
        self._by_priority: dict[int, _Level] = {}

    @property
    def fresh(self) -> int:
        """How many wait that were with no engine yet."""
        return self.count - len(self._again)

    def __iter__(self) -> Iterator[Waiter]:
        yield from self._again
        for level in self._levels:
            for line in level.lines.values():
                yield from line.waiters

    # Coming.

    def join(self, waiter: Waiter) -> None:
        """Wait. Whether there is place for it was asked before, and which (`place_for`)."""
        waiter.waits = True
        self.count += 1
        if waiter.tried:
            self._again[waiter] = None
            return
        level = self._by_priority.get(waiter.priority)
        if level is None:
            level = self._by_priority[waiter.priority] = _Level(waiter.priority)
            insort(self._levels, level, key=lambda each: -each.priority)
        line = level.lines.get(waiter.caller)
        if line is None:
            line = level.lines[waiter.caller] = _Line()
        waiter.number = line.joined
        line.joined += 1
        line.waiters[waiter] = None
        line.bytes += waiter.size
        level.count += 1
        self.bytes += waiter.size

    def place_for(self, waiter: Waiter) -> int:
        """About which one it would be if it came now, 1 for the next; for one that waits, `place_of`."""
        if waiter.tried:
            return len(self._again) + 1
        level = self._by_priority.get(waiter.priority)
        line = level.lines.get(waiter.caller) if level is not None else None
        own = len(line.waiters) if line is not None else 0
        return self._before(waiter.priority) + _turns(level, line, own) + 1

    def place_of(self, waiter: Waiter) -> int:
        """About which one it is now, 1 for the next."""
        if waiter.tried:
            return min(waiter.place, len(self._again))
        level = self._by_priority[waiter.priority]
        line = level.lines[waiter.caller]
        own = min(waiter.number - line.left, len(line.waiters) - 1)
        return self._before(waiter.priority) + _turns(level, line, own) + 1

    def _before(self, priority: int) -> int:
        """How many go first since they are sent again, or are of a higher priority."""
        before = len(self._again)
        for level in self._levels:
            if level.priority <= priority:
                break
            before += level.count
        return before

    def displaced_by(self, waiter: Waiter, *, count_max: int, bytes_max: int) -> list[Waiter] | None:
        """Who has to go so that this one can wait within the limits; None when there is no place for it.

        The last of those with the lowest priority go, if it is below this one's, or if their caller has more than
        this one's even afterwards. They are all of one caller, and it is not more of them than is needed.
        """
        too_many = self.fresh + 1 - count_max
        # A single request may wait whatever its size.
        too_large = self.bytes + waiter.size - bytes_max if self.bytes else 0
        if too_many <= 0 and too_large <= 0:
            return []
        if not self._levels:
            return None
        level = self._levels[-1]
        if level.priority > waiter.priority:
            return None
        same = level.priority == waiter.priority
        own = level.lines.get(waiter.caller) if same else None
        own_count = len(own.waiters) + 1 if own is not None else 1
        own_bytes = own.bytes + waiter.size if own is not None else waiter.size
        if same and too_large <= 0 and own_count * len(level.lines) > level.count:
            return None  # it has its part already, as nearly all that come to a full queue have
        others = [line for line in level.lines.values() if line is not own]
        if not others:
            return None
        by_size = too_large > 0
        donor = max(others, key=lambda line: line.bytes if by_size else len(line.waiters))
        gone: list[Waiter] = []
        freed = 0
        for last in reversed(donor.waiters):
            if len(gone) >= too_many and freed >= too_large:
                break
            gone.append(last)
            freed += last.size
        if len(gone) < too_many or freed < too_large:
            return None
        if same and too_many > 0 and len(donor.waiters) - len(gone) < own_count:
            return None
        if same and too_large > 0 and donor.bytes - freed < own_bytes:
            return None
        return gone

    # Going.

    def pop(self, endpoint: Any = None) -> Waiter | None:
        """The next for an endpoint with room; None when nobody waits that it would do for."""
        if self._again:
            first = next(iter(self._again))
            if endpoint not in first.tried:
                self._again_gone(first)
                return first
        if not self._levels:
            return None
        at = 0
        for index, level in enumerate(self._levels):
            if index and level.passed >= PASSED_MAX:
                at = index
                break
        for level in self._levels[at + 1 :]:
            level.passed += 1
        level = self._levels[at]
        level.passed = 0
        caller, line = next(iter(level.lines.items()))
        waiter, _ = line.waiters.popitem(last=False)
        line.left = waiter.number + 1
        line.bytes -= waiter.size
        if line.waiters:
            level.lines.move_to_end(caller)
        self._gone(waiter, level, line)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """It waits no more."""
        if waiter.tried:
            self._again_gone(waiter)
            return
        level = self._by_priority[waiter.priority]
        line = level.lines[waiter.caller]
        del line.waiters[waiter]
        line.bytes -= waiter.size
        self._gone(waiter, level, line)

    def _again_gone(self, waiter: Waiter) -> None:
        waiter.waits = False
        del self._again[waiter]
        self.count -= 1

    def _gone(self, waiter: Waiter, level: _Level, line: _Line) -> None:
        waiter.waits = False
        self.count -= 1
        self.bytes -= waiter.size
        level.count -= 1
        if not line.waiters:
            del level.lines[waiter.caller]
        if not level.count:
            self._levels.remove(level)
            del self._by_priority[waiter.priority]


def _turns(level: _Level | None, line: _Line | None, own: int) -> int:
    """How many of its priority go first, at most, when `own` of its own line do: for each of its line's, and for
    its own turn, the other callers have one, as far as they have that many."""
    if level is None:
        return 0
    others = len(level.lines) - (line is not None)
    others_waiting = level.count - (len(line.waiters) if line is not None else 0)
    return own + min((own + 1) * others, others_waiting)
