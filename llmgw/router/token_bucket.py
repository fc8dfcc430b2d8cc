"""A rate as one router may use it: its part of a limit that several routers hold together.

Pure: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

MINUTE_S = 60.0
NEXT_AT_LEAST_S = 0.001


class TokenBucket:
    """Holds a minute's worth of its part, full at first, and fills evenly.

    What is taken may leave it in debt, which is paid before anything is given again: what a request costs in tokens
    is known at its end only, and a part may be smaller than one request. Over any time the routers together give no
    more than what their parts hold and what flows in, and one request beyond it each.
    """

    __slots__ = ("_at", "_level", "limit", "part")

    def __init__(self, limit: float, part: float, now: float) -> None:
        """`limit` is a minute's worth for all routers, `part` for this one."""
        self.limit = limit
        self.part = part
        self._level = part
        self._at = now

    def level(self, now: float) -> float:
        """What may be taken now; 0 and below: nothing."""
        elapsed_s = now - self._at
        if elapsed_s > 0:
            self._at = now
            self._level = min(self.part, self._level + self.part * elapsed_s / MINUTE_S)
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Take so much, be it more than there is."""
        self._level = self.level(now) - amount

    def wait_s(self, now: float) -> float:
        """How long until there is something again."""
        return max(0.0, -self.level(now)) / self.part * MINUTE_S + NEXT_AT_LEAST_S

    def full_in_s(self, now: float) -> float:
        """How long until it is full, when nothing is taken."""
        return (self.part - self.level(now)) / self.part * MINUTE_S

    def set_part(self, part: float, now: float) -> None:
        """The limit is divided anew. What is left moves with the parts: what one router loses another one gains, so
        that moving them gives nobody a second minute's worth, in whichever order the routers hear of it.
        """
        self._level = min(part, self.level(now) + part - self.part)
        self.part = part

    def set_limit(self, limit: float, now: float) -> None:
        """An operator set another limit: who had used half of the old one has half of the new one left."""
        scale = limit / self.limit
        level = self.level(now)
        # A debt was made by the old limit's measure, and would last for ever under a much lower one.
        self._level = max(level, -self.part) * scale
        self.part *= scale
        self.limit = limit
