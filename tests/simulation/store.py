"""The store on a virtual disk: the real statements on SQLite in memory, and a crash that loses what waited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, select
from sqlalchemy.pool import StaticPool

from llmgw.messages.findings import Finding
from llmgw.server.store import reads, schema, writes
from llmgw.server.store.interface import StoreInterface
from llmgw.server.store.queue import WriteQueue
from llmgw.server.store.records import Kept

T = TypeVar("T")


class Disk:
    """The database file: it outlives servers."""

    def __init__(self) -> None:
        self.engine: Engine = create_engine("sqlite://", poolclass=StaticPool)
        schema.metadata.create_all(self.engine)

    def newest_history_id(self) -> int:
        """The id of the last row of history, 0 when there is none."""
        with self.engine.begin() as connection:
            newest = connection.scalar(select(schema.history.c.id).order_by(schema.history.c.id.desc()).limit(1))
        return newest or 0

    def holds_end(self, replica_id: str, rank: int, node_id: str) -> bool:
        """True when history has the end of a replica's shard on that node."""
        query = select(schema.history.c.reason).where(
            schema.history.c.subject == replica_id,
            schema.history.c.event.in_(["shard stopped", "shard failed"]),
        )
        with self.engine.begin() as connection:
            reasons = connection.scalars(query).all()
        return any(reason.startswith(f"rank {rank} on {node_id}: ") for reason in reasons)

    def close(self) -> None:
        self.engine.dispose()


class SimStore(StoreInterface):
    """One server's store. Writes wait in the real queue until somebody needs them on the disk."""

    def __init__(self, kept: Kept, disk: Disk) -> None:
        super().__init__(kept)
        self._disk = disk
        self._queue = WriteQueue()
        self._written = asyncio.Event()

    @classmethod
    def open(cls, disk: Disk, now: float) -> SimStore:
        with disk.engine.begin() as connection:
            return cls(reads.begin_epoch(connection, now, "simulated"), disk)

    def write_out(self, keep_back: int = 0) -> None:
        """Commit what waits, except the newest `keep_back` writes."""
        batch = self._queue.take(max(0, len(self._queue) - keep_back))
        if not batch:
            return
        with self._disk.engine.begin() as connection:
            rows: list[dict[str, Any]] = []
            for _, write in batch:
                if write.history_row is not None:
                    rows.append(write.history_row)
                    continue
                if rows:
                    writes.insert_history(connection, rows)
                    rows = []
                result = write.apply(connection) if write.apply is not None else None
                if write.then is not None:
                    write.then(result)
            if rows:
                writes.insert_history(connection, rows)
        written, self._written = self._written, asyncio.Event()
        written.set()

    def _enqueue(self, write: Any) -> None:
        self._queue.add(write)

    async def _commit(self, apply: Callable[[Connection], T], then: Callable[[T], None]) -> T:
        self.write_out()
        with self._disk.engine.begin() as connection:
            result = apply(connection)
        then(result)
        return result

    async def _read(self, ask: Callable[[Connection], T]) -> T:
        self.write_out()
        with self._disk.engine.begin() as connection:
            return ask(connection)

    async def flush(self, timeout_s: float | None = None) -> None:
        self.write_out()

    async def stored(self, timeout_s: float) -> bool:
        """With the next batch; the server may die before."""
        try:
            async with asyncio.timeout(timeout_s):
                if len(self._queue):
                    await self._written.wait()
        except TimeoutError:
            return False
        return True

    def findings(self) -> list[Finding]:
        return []

    async def close(self, timeout_s: float = 0.0) -> None:
        self.write_out()
