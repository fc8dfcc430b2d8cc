"""A rate as one router may use it: its part of a limit that several routers hold together.

Pure: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

MINUTE_S = 60.0
_NEARLY = 1e-9


class TokenBucket:
    """Holds a minute's worth of its part, full at first, and fills evenly.

    What is taken may leave it in debt, which is paid before anything is given again: what a request costs in
    tokens is known at its end only, and a part may be smaller than one request.
    """

    __slots__ = ("_at", "_level", "_moved", "_refill", "least", "limit", "part")

    def __init__(self, limit: float, part: float, now: float, moved: float = 0.0) -> None:
        """`limit` is a minute's worth for all routers, `part` for this one. `moved` is as in `set_part`: what was
        moved before this bucket was there is none of its."""
        self.limit = limit
        self._level = part
        self._at = now
        self._moved = moved
        self._set_part(part)

    def level(self, now: float) -> float:
        """What is in it, below 0 what is owed."""
        elapsed_s = now - self._at
        if elapsed_s > 0:
            self._at = now
            level = self._level + self._refill * elapsed_s
            self._level = level if level < self.part else self.part
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Take so much, be it more than there is."""
        elapsed_s = now - self._at
        level = self._level
        if elapsed_s > 0:  # as `level`, of which requests are
            self._at = now
            level += self._refill * elapsed_s
            if level > self.part:
                level = self.part
        self._level = level - amount

    def take_if(self, amount: float, now: float) -> tuple[int, int] | None:
        """Take so much, if at least one is there, and say what is `left`; None if not."""
        elapsed_s = now - self._at
        level = self._level
        if elapsed_s > 0:
            self._at = now
            level += self._refill * elapsed_s
            if level > self.part:
                level = self.part
        if level < self.least:
            self._level = level
            return None
        self._level = level = level - amount
        return (int(level) if level > 0 else 0), int((self.part - level) / self._refill * 1000)

    def give_back(self, amount: float, now: float) -> None:
        """What was taken was not used after all."""
        self._level = min(self.part, self.level(now) + amount)

    def wait_s(self, now: float) -> float:
        """How long until something may be taken."""
        return max(0.0, self.least - self.level(now)) / self._refill

    def left(self) -> tuple[int, int]:
        """(what is in it, in how many milliseconds it is full when nothing is taken), of the last `level`."""
        level = self._level
        return (int(level) if level > 0 else 0), int((self.part - level) / self._refill * 1000)

    def set_part(self, part: float, moved: float | None, now: float) -> None:
        """The limit is divided anew. `moved` is what has come from other routers in all since `begin_moves`, or
        went to them (below 0); None: as much as before. Moving gives nobody what another does not lose.
        """
        level = self.level(now)
        if moved is not None:
            level += moved - self._moved
            self._moved = moved
        self._level = min(part, level)
        self._set_part(part)

    def begin_moves(self) -> None:
        """Whoever divides the limit counts what it moves from 0 on."""
        self._moved = 0.0

    def set_limit(self, limit: float, now: float) -> None:
        """An operator set another limit: who had used half of the old one has half of the new one left."""
        scale = limit / self.limit
        # A debt was made by the old limit's measure, and would last for ever under a much lower one.
        self._level = max(self.level(now), -self.part) * scale
        self._set_part(self.part * scale)
        self.limit = limit

    def _set_part(self, part: float) -> None:
        self.part = part
        self._refill = part / MINUTE_S
        self.least = min(1.0, part) - _NEARLY
        """One, or all that a part below one holds: so much must be in it when something is taken."""
