"""Whether the files that the store has open are still those at its path.

SQLite notices nothing when its log or its database is removed or replaced under it: it goes on in files that
nobody will ever find, and what was acknowledged is gone at the next start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from llmgw.server.store.errors import StoreError

log = structlog.get_logger(__name__)

_Identity = tuple[int, int]


class OpenFiles:
    """Made when writer and reader are connected; `check` belongs before each commit.

    `in_thread` runs what blocks in the writer's thread.
    """

    def __init__(
        self,
        path: Path,
        writing: Engine,
        reading: AsyncEngine,
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._path = path
        self._writing = writing
        self._reading = reading
        self._in_thread = in_thread
        self._database = _identity(path)
        self._log: _Identity | None = _identity(self._log_path)

    async def check(self) -> None:
        """Mend a log that was removed; raise StoreError for a database that was removed or replaced."""
        if _identity(self._path) != self._database:
            raise StoreError(
                f"{self._path} was removed or replaced while this server has it open",
                "nothing is stored until the server is started again; put the right file there first",
            )
        if self._log is None:
            self._log = _identity(self._log_path)
        elif _identity(self._log_path) != self._log:
            await self._mend_log()

    @property
    def _log_path(self) -> Path:
        return self._path.with_name(f"{self._path.name}-wal")

    async def _mend_log(self) -> None:
        """Bring what stands in the log that is still open into the database, and begin a new one."""
        await self._in_thread(self._empty_log)
        await self._reading.dispose()
        await self._in_thread(self._begin_log)
        async with self._reading.connect() as connection:
            await connection.exec_driver_sql("SELECT count(*) FROM sqlite_master")
        self._log = _identity(self._log_path)
        log.warning("the store's log was removed under it; nothing is lost", store=str(self._path))

    def _empty_log(self) -> None:
        with self._writing.connect() as connection:
            # Below SQLAlchemy, which would begin a transaction, and a checkpoint cannot be in one.
            driver = connection.connection.driver_connection
            assert driver is not None
            # https://www.sqlite.org/pragma.html#pragma_wal_checkpoint: (busy, frames, frames now in the file)
            busy, frames, done = driver.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if busy or frames != done:
            raise StoreError(f"the log of {self._path} was removed, and is still in use", "it is tried again")
        self._writing.dispose()

    def _begin_log(self) -> None:
        # Whatever lies there now is not what this server wrote, and SQLite would take it for its own.
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        with self._writing.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM sqlite_master")


def _identity(path: Path) -> _Identity | None:
    """(device, inode) of what lies at the path; None when nothing does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
