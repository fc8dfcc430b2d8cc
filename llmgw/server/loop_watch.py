"""How long the event loop is held up: whatever runs too long keeps everybody waiting, agents and operators."""

from __future__ import annotations

import asyncio

BEAT_S = 0.02
WINDOW_S = 30.0


class LoopWatch:
    """A beat that comes late was kept waiting by something else, if only by other programs on the machine."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._before_s = 0.0
        self._window_ends = 0.0

    async def run(self) -> None:
        """Beat until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            now = loop.time()
            if now >= self._window_ends:
                self._before_s, self._now_s = self._now_s, 0.0
                self._window_ends = now + WINDOW_S
            self._now_s = max(self._now_s, now - due)

    def longest_s(self) -> float:
        """The longest pause of the last `WINDOW_S` to twice that."""
        return max(self._now_s, self._before_s)
