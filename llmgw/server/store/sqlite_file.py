"""The store's file as a file: made private, checked before use, copied before it is migrated."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from llmgw.server.store.engine import BUSY_TIMEOUT_MS
from llmgw.server.store.errors import StoreError, damaged, explain, not_a_database

BACKUPS_KEPT = 3
_MAGIC = b"SQLite format 3\x00"  # https://www.sqlite.org/fileformat.html#magic_header_string


def make_private(path: Path) -> None:
    """Make the file when it is not there, and let nobody but its owner read it (0600).

    SQLite gives its -wal and -shm files the same mode. Raises OSError, or StoreError when something other
    than a file stands there.
    """
    if path.is_dir():
        raise StoreError(
            f"{path} is a folder, and the store's database file belongs there",
            "move it away or set state to another folder",
        )
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not an ordinary file", "move it away or set state to another folder")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def check(path: Path) -> None:
    """Refuse what is not a sound SQLite database. An empty file is a new store.

    `quick_check` reads every page: about a second for a million rows of history. Raises StoreError.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
        if not magic:
            return
        if magic != _MAGIC:
            raise not_a_database(path)
        with closing(connect(path)) as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found is None or found[0] != "ok":
                raise damaged(path, str(found[0]) if found else "quick_check says nothing")
    except (OSError, sqlite3.Error) as error:
        raise explain(error, path) from error


def back_up(path: Path, revision: str, now: float) -> Path:
    """Copy the database to `<path>.backup-<revision>-<time>` and keep the newest three copies.

    SQLite's backup API reads through the log, which a copy of the file alone would miss. `now` is seconds
    since the epoch. The copy has its name only when it is whole. Raises StoreError.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    target = path.with_name(f"{path.name}.backup-{revision}-{stamp}")
    partial = path.with_name(f"{path.name}.backup-partial")
    try:
        partial.unlink(missing_ok=True)
        make_private(partial)
        with closing(connect(path)) as source, closing(connect(partial)) as copy:
            source.backup(copy)
        _sync(partial)
        partial.rename(target)
        _sync(path.parent)
        for old in backups(path)[BACKUPS_KEPT:]:
            old.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        partial.unlink(missing_ok=True)
        problem = explain(error, partial)
        raise StoreError(
            f"{path} needs a migration and could not be copied first: {problem.what}", problem.remedy
        ) from error
    return target


def backups(path: Path) -> list[Path]:
    """The copies that exist, newest first."""
    found = [
        other
        for other in path.parent.glob(f"{path.name}.backup-*-*")
        if other.is_file() and not other.is_symlink()
    ]
    return sorted(found, key=lambda other: other.name.rsplit("-", 1)[-1], reverse=True)


def connect(path: Path) -> sqlite3.Connection:
    """A plain connection, for what is done before and beside SQLAlchemy."""
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
