"""The part of the store that keeps what requests took, by key, model and hour."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar, cast

import msgspec
from sqlalchemy import Connection

from llmgw.messages.routes import UsageBatch, UsageRow
from llmgw.messages.usage_views import USAGE_ENTRIES_MAX, UsageEntry
from llmgw.server.store import usage_rows
from llmgw.server.store.queue import Write
from llmgw.server.store.usage_rows import COUNTS

KEY_CHARS_MAX = 64
MODEL_CHARS_MAX = 256
COUNT_MAX = 2**52
"""Of one row: what routers say stays addable for ever."""

T = TypeVar("T")


class Reader(Protocol):
    """Puts a question to what is committed."""

    def __call__(self, ask: Callable[[Connection], T]) -> Awaitable[T]: ...


class UsageStore:
    """Made by the store; calls that change something return at once."""

    def __init__(self, enqueue: Callable[[Write], None], read: Reader) -> None:
        self._enqueue = enqueue
        self._read = read

    def add(self, batches: Sequence[UsageBatch], now: float, then: Callable[[list[bool]], None]) -> None:
        """Add batches of routers, each only once however often it comes. `then` is called when they are on the
        disk, with True for each that was new."""
        bounded = [_bounded(batch) for batch in batches]
        self._enqueue(
            Write(
                apply=partial(usage_rows.add_usage, batches=bounded, now=now),
                then=lambda fresh: then(cast(list[bool], fresh)),
            )
        )

    def prune(self, keep_s: float, now: float) -> None:
        """Delete what ended longer ago than that, in small transactions."""

        def then(more: object) -> None:
            if more:
                self.prune(keep_s, now)

        prune = partial(usage_rows.prune_usage, before_s=int(now - keep_s), now=now)
        self._enqueue(Write(apply=prune, touch="prune usage", then=then))

    async def read(
        self,
        *,
        from_s: int,
        to_s: int,
        key: str | None = None,
        model: str | None = None,
        by: Collection[str] = (),
        limit: int = USAGE_ENTRIES_MAX,
    ) -> list[UsageEntry]:
        """Sums of the hours that begin from `from_s` on and before `to_s`; `by` says what is told apart.

        Raises StoreError.
        """
        return await self._read(
            partial(usage_rows.read_usage, from_s=from_s, to_s=to_s, key=key, model=model, by=by, limit=limit)
        )


def _bounded(batch: UsageBatch) -> UsageBatch:
    """A batch that any database takes: names of bounded length, each row once, no number out of range."""
    sums: dict[tuple[int, str, str], list[int]] = {}
    for row in batch.rows:
        where = (row.hour_s, _text(row.key, KEY_CHARS_MAX), _text(row.model, MODEL_CHARS_MAX))
        counts = sums.setdefault(where, [0] * len(COUNTS))
        for index, name in enumerate(COUNTS):
            counts[index] = min(COUNT_MAX, counts[index] + max(0, getattr(row, name)))
    rows = [
        UsageRow(hour_s=hour_s, key=key, model=model, **dict(zip(COUNTS, counts, strict=True)))
        for (hour_s, key, model), counts in sums.items()
    ]
    return msgspec.structs.replace(batch, ledger=_text(batch.ledger, 64), rows=rows)


def _text(value: str, chars_max: int) -> str:
    return value[:chars_max].encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
