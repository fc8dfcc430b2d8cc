"""How long the event loop is held up: whatever runs too long keeps everybody waiting, agents and operators."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

BEAT_S = 0.02
WINDOW_S = 15.0


@dataclass(frozen=True, slots=True)
class LoopPause:
    """Longest times between two looks of the event loop, in seconds; not of the same pause, necessarily.

    `busy_s` is what the loop's own thread computed meanwhile. Where `late_s` is much longer, the machine had no
    time for this process.
    """

    late_s: float = 0.0
    busy_s: float = 0.0


class LoopWatch:
    """A beat that comes late was kept waiting by something else."""

    def __init__(self) -> None:
        self._now = LoopPause()
        self._before = LoopPause()
        self._window_ends = 0.0

    async def run(self) -> None:
        """Beat until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due, computed = loop.time() + BEAT_S, time.thread_time()
            await asyncio.sleep(BEAT_S)
            now = loop.time()
            if now >= self._window_ends:
                self._before, self._now = self._now, LoopPause()
                self._window_ends = now + WINDOW_S
            self._now = _longer(self._now, LoopPause(now - due, time.thread_time() - computed))

    def longest(self) -> LoopPause:
        """Of the last `WINDOW_S` to twice that."""
        return _longer(self._now, self._before)


def _longer(one: LoopPause, other: LoopPause) -> LoopPause:
    return LoopPause(max(one.late_s, other.late_s), max(one.busy_s, other.busy_s))
