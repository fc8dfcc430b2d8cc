"""How fast a queue drains: starts per second, of the time in which something waited.

Pure: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

import math

REMEMBERED_S = 30.0
"""What is older than this counts for less than a third, and so on."""
FORGOTTEN_S = 300.0
"""A queue that was empty for so long knows nothing of the next one."""


class DrainRate:
    """Fed with every start; it stands still while nothing waits."""

    __slots__ = ("_empty_since", "_seconds", "_since", "_starts", "count")

    def __init__(self) -> None:
        self.count = 0
        """How many starts it has seen: after a few it knows little, since engines may finish theirs together."""
        self._starts = 0.0
        self._seconds = 0.0
        self._since = 0.0
        self._empty_since = -math.inf

    def begin(self, now: float) -> None:
        """Something waits from now on."""
        if now - self._empty_since >= FORGOTTEN_S:
            self._starts = self._seconds = 0.0
            self.count = 0
        self._since = now

    def started(self, now: float) -> None:
        """A request that waited is sent to an engine."""
        self._pass(now)
        self._starts += 1.0
        self.count += 1

    def end(self, now: float) -> None:
        """Nothing waits any more."""
        self._pass(now)
        self._empty_since = now

    def wait_s(self, place: int, now: float) -> float | None:
        """How long until the request at this place starts, 1 for the next; None while nothing is known.

        For a queue in which something waits.
        """
        self._pass(now)
        if not self._starts:
            return None
        return place * self._seconds / self._starts

    def _pass(self, now: float) -> None:
        passed = max(0.0, now - self._since)
        keep = math.exp(-passed / REMEMBERED_S)
        self._starts *= keep
        self._seconds = self._seconds * keep + REMEMBERED_S * (1.0 - keep)
        self._since = now
