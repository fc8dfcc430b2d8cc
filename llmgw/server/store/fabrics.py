"""The part of the store that remembers physical fabrics: identities, cabling, and every change.

What is known is answered from memory; changes are read from the disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, get_args

import msgspec
from sqlalchemy import Connection

from llmgw.messages.admin_fabrics import FabricChangeView
from llmgw.server.store import fabric_rows
from llmgw.server.store.fabric_records import Area, FabricChange, PhysicalFabricRecord
from llmgw.server.store.queue import Write

CHANGES_KEPT = 100_000
"""Of each area, so that a port that flaps does not drive the history of the cabling out."""
CHANGES_PAGE_MAX = 1_000
PRUNE_EVERY_CHANGES = 1_000
PRUNE_CHUNK_ROWS = 20_000
DAY_S = 86_400.0
TEXT_CHARS_MAX = 1_000

T = TypeVar("T")


class Reader(Protocol):
    """Puts a question to what is committed."""

    def __call__(self, ask: Callable[[Connection], T]) -> Awaitable[T]: ...


class FabricStore:
    """Made by the store; calls that change something return at once."""

    def __init__(
        self, kept: dict[str, PhysicalFabricRecord], enqueue: Callable[[Write], None], read: Reader
    ) -> None:
        self._kept = kept
        self._enqueue = enqueue
        self._read = read
        self._added = 0

    def known(self) -> list[PhysicalFabricRecord]:
        """Every fabric that is kept, by id."""
        return [self._kept[fabric_id] for fabric_id in sorted(self._kept)]

    def put(self, fabric_id: str, **values: Any) -> None:
        """Keep what `values` names of a fabric (fields of its record). What has not changed is not written."""
        known = self._kept.get(fabric_id)
        record = msgspec.structs.replace(known or PhysicalFabricRecord(id=fabric_id), **values)
        if record == known:
            return
        self._kept[fabric_id] = record
        # That the managers said the same again a minute later is worth no row of its own.
        only_time = known is not None and msgspec.structs.replace(known, said_at=record.said_at) == record
        self._enqueue(
            Write(
                apply=partial(fabric_rows.put_fabric, fabric_id=fabric_id, values=values),
                touch=f"physical fabric {fabric_id}" if only_time else None,
            )
        )

    def forget(self, fabric_id: str) -> None:
        """Forget a fabric; what changed on it stays."""
        if self._kept.pop(fabric_id, None) is not None:
            self._enqueue(Write(apply=partial(fabric_rows.forget_fabric, fabric_id=fabric_id)))

    def add_changes(self, changes: Sequence[FabricChange]) -> None:
        """Keep what changed. The newest `CHANGES_KEPT` of each area stay."""
        if not changes:
            return
        rows = [_bounded(change) for change in changes]
        self._enqueue(Write(apply=partial(fabric_rows.add_changes, changes=rows)))
        before, self._added = self._added, self._added + len(rows)
        if before // PRUNE_EVERY_CHANGES != self._added // PRUNE_EVERY_CHANGES:
            for area in get_args(Area):
                self.prune(area, CHANGES_KEPT)

    def prune(self, area: Area, keep_rows: int) -> None:
        """Delete all but the newest `keep_rows` changes of an area, in small transactions."""

        def then(deleted: object) -> None:
            if deleted == PRUNE_CHUNK_ROWS:
                self.prune(area, keep_rows)

        prune = partial(
            fabric_rows.prune_changes, area=area, keep_rows=max(0, keep_rows), chunk_rows=PRUNE_CHUNK_ROWS
        )
        self._enqueue(Write(apply=prune, touch=f"prune fabric changes {area}", then=then))

    async def changes(
        self,
        *,
        ids: Collection[str],
        names: Collection[str],
        now: float,
        before: int | None = None,
        limit: int = 100,
    ) -> list[FabricChangeView]:
        """Changes of the fabrics with these ids or names, newest first; those of ports reach back a day.

        `before` is an id, to page by key. Raises StoreError.
        """
        count = max(1, min(limit, CHANGES_PAGE_MAX))
        return await self._read(
            partial(
                fabric_rows.changes,
                ids=ids,
                names=names,
                ports_since=now - DAY_S,
                before=before,
                limit=count,
            )
        )

    async def counts(self, now: float) -> dict[tuple[str | None, str | None], int]:
        """(id, name) → how many changes there were in the last day. Raises StoreError."""
        return await self._read(partial(fabric_rows.counts, since=now - DAY_S))


def _bounded(change: FabricChange) -> FabricChange:
    """Device names come from the fabric: anything may stand in them."""

    def text(value: str | None) -> str | None:
        if value is None:
            return None
        return value[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")

    return msgspec.structs.replace(
        change,
        what=text(change.what) or "",
        before=text(change.before),
        after=text(change.after),
        node=None if change.node is None else (text(change.node) or "")[:256],
    )
