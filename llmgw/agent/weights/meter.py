"""How fast bytes come, how fast they may come, and since when none have."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

WINDOW_S = 10.0
# A rate over less is noise.
RATE_FROM_S = 1.0
POINTS_MAX = 256


class Meter:
    """Bytes of one download over time. `now_s` is a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._points: deque[tuple[float, int]] = deque(maxlen=POINTS_MAX)
        self.done_bytes = 0
        self.moved_at_s = now_s()
        """When bytes last came, or were last worked on."""

    def restart(self, done_bytes: int) -> None:
        """Count from here: what was there before, or nothing."""
        self._points.clear()
        self._points.append((self._now_s(), done_bytes))
        self.done_bytes = done_bytes

    def moved_to(self, done_bytes: int) -> None:
        """So many are done by now."""
        now = self._now_s()
        self.done_bytes = done_bytes
        self.moved_at_s = now
        if not self._points or now - self._points[-1][0] >= WINDOW_S / POINTS_MAX:
            self._points.append((now, done_bytes))
        while len(self._points) > 2 and now - self._points[1][0] >= WINDOW_S:
            self._points.popleft()

    def rate_bytes_s(self) -> float | None:
        """Over the last seconds; None while that cannot be said."""
        if not self._points:
            return None
        at, before = self._points[0]
        elapsed = self._now_s() - at
        return (self.done_bytes - before) / elapsed if elapsed >= RATE_FROM_S else None


class Throttle:
    """Lets through at most `limit_bytes_s` for all who ask; None is no limit."""

    def __init__(self, limit_bytes_s: int | None, now_s: Callable[[], float]) -> None:
        self._limit_bytes_s = limit_bytes_s
        self._now_s = now_s
        self._free_at_s = 0.0

    async def take(self, count: int) -> None:
        """Wait until these bytes are within the limit."""
        if self._limit_bytes_s is None:
            return
        now = self._now_s()
        begins = max(now, self._free_at_s)
        self._free_at_s = begins + count / self._limit_bytes_s
        if begins > now:
            await asyncio.sleep(begins - now)
