"""That something which pages draw may have changed: counted where it is told, and waited for by whoever draws it.

It knows neither what changed nor who looks.
"""

from __future__ import annotations

import asyncio


class News:
    """Two counters. What happened is worth looking at once; figures only move.

    `epoch` is the server's: the counters begin anew with it.
    """

    def __init__(self, epoch: str = "") -> None:
        self.epoch = epoch
        self.happened = 0
        """Transitions, changes by operators, findings: each is one."""
        self.moved = 0
        """Messages that brought figures: heartbeats, what routers saw."""
        self.ended = False
        """This server stops: nothing more will be told."""
        self._waiting: dict[asyncio.Future[None], bool] = {}
        """Who waits → whether for the end alone."""

    @property
    def version(self) -> str:
        """What was counted until now, as a word: `EPOCH.HAPPENED.MOVED`."""
        return f"{self.epoch}.{self.happened}.{self.moved}"

    def counted(self, version: str) -> tuple[int, int] | None:
        """(happened, moved) of a version; None for one of another server, or no version at all."""
        rest, _, moved = version.rpartition(".")
        epoch, _, happened = rest.rpartition(".")
        if epoch != self.epoch or not (_is_count(happened) and _is_count(moved)):
            return None
        return int(happened), int(moved)

    def happen(self) -> None:
        """Something is another than before."""
        self.happened += 1
        self._wake(self.ended)

    def move(self) -> None:
        """Figures are newer; nobody is woken for them."""
        self.moved += 1

    def end(self) -> None:
        """Whoever waits is woken."""
        self.ended = True
        self._wake(True)

    async def wait(self, *, only_end: bool = False) -> None:
        """Return when something happens from now on (unless `only_end`), or when it has ended."""
        if self.ended:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = only_end
        try:
            await woken
        finally:
            self._waiting.pop(woken, None)

    def _wake(self, end: bool) -> None:
        for woken, only_end in list(self._waiting.items()):
            if (end or not only_end) and not woken.done():
                woken.set_result(None)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
