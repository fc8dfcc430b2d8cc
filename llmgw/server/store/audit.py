"""The part of the store that keeps the audit log: written without waiting, bounded.

What the disk has not taken yet is read from memory: a log that is empty for a full disk would be untrue.
"""

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
        self._waiting: dict[int, AuditEntry] = {}
        """Entries that are not committed, oldest first."""
        self._counts: dict[int, tuple[int, float]] = {}
        """Entry → (count, last at) that are not committed."""

    def add(self, entry: AuditEntry) -> int:
        """Keep an entry under the next id, which is returned; its own `id` means nothing. Long texts are cut."""
        self._last_id += 1
        kept = msgspec.structs.replace(
            entry,
            id=self._last_id,
            status=max(0, min(entry.status, STATUS_MAX)),
            **{name: _text(getattr(entry, name), chars_max) for name, chars_max in CHARS_MAX.items()},
        )
        self._waiting[kept.id] = kept
        then = partial(self._stored, kept.id)
        self._enqueue(Write(apply=partial(audit_rows.add_entry, entry=kept), then=then))
        if self._last_id % PRUNE_EVERY_ROWS == 0:
            self.prune()
        return self._last_id

    def count(self, entry_id: int, count: int, last_at: float) -> None:
        """What an entry tells of has happened again: so often by now, and last at that time."""
        self._counts[entry_id] = count, last_at
        apply = partial(audit_rows.count_entry, entry_id=entry_id, count=count, last_at=last_at)
        then = partial(self._counted, entry_id, count)
        self._enqueue(Write(apply=apply, touch=f"audit {entry_id}", then=then))

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

        Those that wait to be stored are among them. At most `AUDIT_PAGE_MAX` at once. Raises StoreError.
        """
        count = max(1, min(limit, AUDIT_PAGE_MAX))
        # Before the question: what is stored meanwhile is found twice, and not missed.
        found = {
            entry.id: entry
            for entry in reversed(self._waiting.values())
            if (before is None or entry.id < before)
            and (by is None or entry.by == by)
            and (subject is None or entry.subject == subject)
            and (from_s is None or entry.at >= from_s)
            and (to_s is None or entry.at < to_s)
        }
        counts = dict(self._counts)
        stored = await self._read(
            partial(
                audit_rows.entries,
                by=by, subject=subject, from_s=from_s, to_s=to_s, before=before, limit=count,
            )
        )  # fmt: skip
        found |= {entry.id: entry for entry in stored}
        newest = [found[number] for number in sorted(found, reverse=True)[:count]]
        return [_counted(entry, *counts[entry.id]) if entry.id in counts else entry for entry in newest]

    def _stored(self, entry_id: int, _result: object) -> None:
        # Also those before it, of which the store has refused one for good: the writer keeps the order.
        while self._waiting and (oldest := next(iter(self._waiting))) <= entry_id:
            del self._waiting[oldest]

    def _counted(self, entry_id: int, count: int, _result: object) -> None:
        if entry_id in self._counts and self._counts[entry_id][0] == count:
            del self._counts[entry_id]


def _counted(entry: AuditEntry, count: int, last_at: float) -> AuditEntry:
    return msgspec.structs.replace(entry, count=count, last_at=last_at)


def _text(value: str, chars_max: int) -> str:
    """What every database takes: UTF-8 without NUL, of bounded length. Clients send anything."""
    cut = value if len(value) <= chars_max else value[: chars_max - 1] + "…"
    return cut.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")
