"""The store of a real server: a locked folder, one task that writes, and connections that read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

import llmgw
from llmgw.messages.findings import Finding
from llmgw.server.store import migrate, reads
from llmgw.server.store.engine import reading_engine, writing_engine
from llmgw.server.store.errors import StoreError, explain
from llmgw.server.store.interface import COMMIT_WAIT_S, HISTORY_ROWS_KEPT, StoreInterface
from llmgw.server.store.lock import StateLock
from llmgw.server.store.open_files import OpenFiles
from llmgw.server.store.queue import Write
from llmgw.server.store.records import Kept
from llmgw.server.store.writer import Writer

DATABASE_NAME = "llmgw.db"

T = TypeVar("T")


class Store(StoreInterface):
    """Opened with `await Store.open(state, now)`. All its methods belong to the loop that opened it."""

    def __init__(
        self,
        kept: Kept,
        path: Path,
        lock: StateLock,
        writing: Engine,
        reading: AsyncEngine,
        history_rows_kept: int,
    ) -> None:
        super().__init__(kept, history_rows_kept)
        self.path = path
        self._lock = lock
        self._writing = writing
        self._reading = reading
        self._writer = Writer(writing, partial(explain, path=path), str(path))
        self._writer.check = OpenFiles(path, writing, reading, self._writer.in_thread).check
        self._writer.start()

    @classmethod
    async def open(
        cls,
        state: Path,
        now: float,
        *,
        migrations: Path | None = None,
        history_rows_kept: int = HISTORY_ROWS_KEPT,
    ) -> Store:
        """Lock the state folder, check and migrate its database, begin an epoch, and return the open store.

        `state` is made (0700) when it is not there; `now` is seconds since the epoch; `migrations` is a folder
        other than the shipped one. Raises StoreError, a sentence, for everything that can be wrong with
        folder or file; they are then as they were, and unlocked.
        """
        lock = StateLock(state)
        path = state / DATABASE_NAME
        writing: Engine | None = None
        reading: AsyncEngine | None = None
        try:
            await _in_a_thread(partial(migrate.prepare, path, now, migrations))
            writing, reading = writing_engine(path), reading_engine(path)
            kept = await _in_a_thread(partial(_begin_epoch, writing, now))
            # A reader that stays connected keeps the log and its index in place: when the writer reconnects
            # on a full disk there would be no room to make them anew, and even reading would fail.
            async with reading.connect() as connection:
                await connection.run_sync(partial(reads.fact, key="version"))
        except BaseException as error:
            if writing is not None:
                writing.dispose()
            if reading is not None:
                await reading.dispose()
            lock.release()
            if isinstance(error, Exception):
                raise explain(error, path) from error
            raise
        store = cls(kept, path, lock, writing, reading, history_rows_kept)
        store.prune_history(history_rows_kept)
        store.audit.prune()
        return store

    def _enqueue(self, write: Write) -> None:
        self._writer.add(write)

    async def _commit(self, apply: Callable[[Connection], T], then: Callable[[T], None]) -> T:
        return await self._writer.commit(apply, then)

    async def _read(self, ask: Callable[[Connection], T]) -> T:
        try:
            async with self._reading.connect() as connection:
                return await connection.run_sync(ask)
        except (SQLAlchemyError, OSError) as error:
            raise explain(error, self.path) from error

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put before is committed. Raises StoreError when `timeout_s` is over first."""
        await self._writer.flush(timeout_s)

    async def stored(self, timeout_s: float) -> bool:
        """True once everything put before is committed; False when that fails or takes longer."""
        return await self._writer.stored(timeout_s)

    def findings(self) -> list[Finding]:
        """What is wrong with the store now."""
        return self._writer.findings()

    async def close(self, timeout_s: float = COMMIT_WAIT_S) -> None:
        """Commit what waits, let go of file and lock. Raises StoreError when something is left uncommitted."""
        try:
            await self._writer.stop(timeout_s)
        finally:
            await self._reading.dispose()
            self._writing.dispose()
            self._lock.release()


def _begin_epoch(writing: Engine, now: float) -> Kept:
    with writing.begin() as connection:
        return reads.begin_epoch(connection, now, llmgw.__version__)


async def _in_a_thread(work: Callable[[], T]) -> T:
    """Like asyncio.to_thread, but it does not leave the thread behind: the lock must outlive the work."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


__all__ = ["DATABASE_NAME", "Store", "StoreError"]
