"""The part of the store that keeps the audit log: written without waiting, read from the disk, bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from sqlalchemy import Connection

from llmgw.messages.audit_views import AuditEntry
from llmgw.server.store import audit_rows
from llmgw.server.store.queue import Write

AUDIT_ROWS_KEPT = 1_000_000
AUDIT_PAGE_MAX = 1_000
PRUNE_EVERY_ROWS = 1_000
PRUNE_CHUNK_ROWS = 20_000
CHARS_MAX = {
    "by": 64,
    "address": 64,
    "method": 16,
    "route": 256,
    "subject": 512,
    "summary": 1_000,
    "message": 1_000,
}
STATUS_MAX = 999

T = TypeVar("T")


class Reader(Protocol):
    """Puts a question to what is committed."""

    def __call__(self, ask: Callable[[Connection], T]) -> Awaitable[T]: ...


class AuditStore:
    """Made by the store; calls that change something return at once."""

    def __init__(
        self,
        last_id: int,
        enqueue: Callable[[Write], None],
        read: Reader,
        rows_kept: int = AUDIT_ROWS_KEPT,
    ) -> None:
        self._last_id = last_id
        self._enqueue = enqueue
        self._read = read
        self._rows_kept = rows_kept

    def add(self, entry: AuditEntry) -> int:
        """Keep an entry under the next id, which is returned; its own `id` means nothing. Long texts are cut."""
        self._last_id += 1
        kept = msgspec.structs.replace(
            entry,
            id=self._last_id,
            status=max(0, min(entry.status, STATUS_MAX)),
            **{name: _text(getattr(entry, name), chars_max) for name, chars_max in CHARS_MAX.items()},
        )
        self._enqueue(Write(apply=partial(audit_rows.add_entry, entry=kept)))
        if self._last_id % PRUNE_EVERY_ROWS == 0:
            self.prune()
        return self._last_id

    def count(self, entry_id: int, count: int, last_at: float) -> None:
        """What an entry tells of has happened again: so often by now, and last at that time."""
        apply = partial(audit_rows.count_entry, entry_id=entry_id, count=count, last_at=last_at)
        self._enqueue(Write(apply=apply, touch=f"audit {entry_id}"))

    def prune(self) -> None:
        """Delete all but the newest entries, in small transactions between other writes."""
        up_to_id = self._last_id - self._rows_kept
        if up_to_id <= 0:
            return

        def then(deleted: object) -> None:
            if deleted == PRUNE_CHUNK_ROWS:
                self.prune()

        prune = partial(audit_rows.prune_entries, up_to_id=up_to_id, chunk_rows=PRUNE_CHUNK_ROWS)
        self._enqueue(Write(apply=prune, touch="prune audit", then=then))

    async def entries(
        self,
        *,
        by: str | None = None,
        subject: str | None = None,
        from_s: float | None = None,
        to_s: float | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[AuditEntry]:
        """Entries that match all that is given, newest first; `before` is an id, to page by key.

        At most `AUDIT_PAGE_MAX` at once. Raises StoreError.
        """
        count = max(1, min(limit, AUDIT_PAGE_MAX))
        return await self._read(
            partial(
                audit_rows.entries,
                by=by, subject=subject, from_s=from_s, to_s=to_s, before=before, limit=count,
            )
        )  # fmt: skip


def _text(value: str, chars_max: int) -> str:
    """What every database takes: UTF-8 without NUL, of bounded length. Clients send anything."""
    cut = value if len(value) <= chars_max else value[: chars_max - 1] + "…"
    return cut.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
