"""SQLAlchemy engines for the store's file: one connection that writes, a few that read.

The hooks here, the checks of the file (`sqlite_file.py`) and the migrations are all that knows of SQLite.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

BUSY_TIMEOUT_MS = 5_000  # a backup tool or an sqlite3 shell may hold the file for a moment
READERS = 4
READER_WAIT_S = 30.0
WAL_BYTES_KEPT = 64 * 1024 * 1024  # after a burst the log is cut back to this


def writing_engine(path: Path) -> Engine:
    """One connection, whose transactions take the write lock as they begin. It blocks; use it in a thread.

    Through the event loop each statement would wait for its turn there: while the loop is busy, a batch
    of hundreds would take a minute, just when there is most to commit.
    """
    engine = create_engine(_url(path, "sqlite"), pool_size=1, max_overflow=0)
    _hook(engine, _WRITER, begin="BEGIN IMMEDIATE")
    return engine


def reading_engine(path: Path) -> AsyncEngine:
    """`READERS` connections that cannot write; each transaction sees one snapshot."""
    engine = create_async_engine(
        _url(path, "sqlite+aiosqlite"), pool_size=READERS, max_overflow=0, pool_timeout=READER_WAIT_S
    )
    _hook(engine.sync_engine, ["PRAGMA query_only = ON"], begin="BEGIN")
    return engine


def migrating_engine(path: Path) -> Engine:
    """A blocking engine for a thread of its own, with foreign keys off.

    A migration rebuilds tables by copy, drop and rename, and the drop would delete the rows that refer to the
    table (https://www.sqlite.org/lang_altertable.html#otheralter).
    """
    engine = create_engine(_url(path, "sqlite"), poolclass=NullPool)
    _hook(engine, [*_WRITER, "PRAGMA foreign_keys = OFF"], begin="BEGIN IMMEDIATE")
    return engine


# FULL syncs the log at each commit, so that a committed change survives a power cut; NORMAL would survive only
# the death of the process (https://www.sqlite.org/pragma.html#pragma_synchronous). One commit takes a whole
# batch and nobody but `flush` waits for it, so that even a disk that syncs 50 times a second keeps up with
# thousands of changes a second.
_WRITER = [
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}",
]
_ALL = [f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}", "PRAGMA foreign_keys = ON"]


def _url(path: Path, driver: str) -> URL:
    return URL.create(driver, database=str(path))


def _hook(engine: Engine, pragmas: list[str], begin: str) -> None:
    def on_connect(connection: Any, _record: object) -> None:
        # The driver's own transactions are turned off: it would commit before DDL, and begin late.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in [*_ALL, *pragmas]:
            cursor.execute(pragma)
        cursor.close()

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    listeners: list[tuple[str, Callable[..., None]]] = [("connect", on_connect), ("begin", on_begin)]
    for name, listener in listeners:
        event.listen(engine, name, listener)
