"""The queue in front of the store's one writer: ordered, bounded, and it never loses a transition."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from llmgw.server.store import writes
from llmgw.server.store.errors import StoreError

WAITING_MAX = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """One change on its way into the store: a function over a connection, or a row of history.

    `touch` marks what only keeps a time or a detail fresh ("when was this token last used"): a later write of
    the same name replaces it, and it may be dropped when too much waits. It must be right at any later
    moment, so it makes no rows. `then` gets the result after the commit. `failed`
    belongs to a write that somebody waits for: it is told of the first failure, and the write is not tried
    again. Such a write is no touch.
    """

    apply: Callable[[Connection], object] | None = None
    history_row: dict[str, Any] | None = None
    touch: str | None = None
    then: Callable[[object], None] | None = None
    failed: Callable[[StoreError], None] | None = None

    def run(self, connection: Connection) -> object:
        """Carry the change out on its own."""
        if self.history_row is not None:
            writes.insert_history(connection, [self.history_row])
        return self.apply(connection) if self.apply is not None else None


class WriteQueue:
    """Writes in the order in which they came, each under a number that grows.

    Up to `waiting_max` wait. Beyond that touches are dropped, oldest first; when only other writes are left
    they are kept in memory all the same, and `behind` says so.
    """

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self.waiting_max = waiting_max
        self.last_number = 0
        self.dropped_touches = 0
        self._waiting: OrderedDict[int, Write] = OrderedDict()
        self._touches: dict[str, int] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def behind(self) -> bool:
        """True while more waits than should."""
        return len(self._waiting) > self.waiting_max

    @property
    def oldest_number(self) -> int | None:
        """The number of the write that waits longest."""
        return next(iter(self._waiting), None)

    def add(self, write: Write) -> None:
        """Put a write at the end. Never blocks, never refuses."""
        self.last_number += 1
        if write.touch is not None:
            superseded = self._touches.pop(write.touch, None)
            if superseded is not None:
                del self._waiting[superseded]
            self._touches[write.touch] = self.last_number
        self._waiting[self.last_number] = write
        if self.behind and self._touches:
            name = next(iter(self._touches))
            del self._waiting[self._touches.pop(name)]
            self.dropped_touches += 1

    def take(self, count: int) -> list[tuple[int, Write]]:
        """Take out the oldest writes, at most `count`, with their numbers."""
        taken: list[tuple[int, Write]] = []
        while self._waiting and len(taken) < count:
            number, write = self._waiting.popitem(last=False)
            if write.touch is not None:
                del self._touches[write.touch]
            taken.append((number, write))
        return taken

    def take_awaited(self) -> list[Write]:
        """Take out every write that somebody waits for, wherever it stands."""
        numbers = [number for number, write in self._waiting.items() if write.failed is not None]
        return [self._waiting.pop(number) for number in numbers]

    def put_back(self, taken: Iterable[tuple[int, Write]]) -> None:
        """Put back what was taken and could not be stored, in front and in its old order."""
        older_touches: dict[str, int] = {}
        for number, write in reversed(list(taken)):
            if write.touch is not None:
                if write.touch in self._touches:
                    continue
                older_touches[write.touch] = number
            self._waiting[number] = write
            self._waiting.move_to_end(number, last=False)
        self._touches = dict(sorted((older_touches | self._touches).items(), key=lambda item: item[1]))
