"""The database as it is at one moment, while a server writes into it.

SQLite's online backup (https://www.sqlite.org/backup.html) within one read transaction: in WAL mode that holds no
writer up, and no later commit makes it begin again.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

from llmgw.server.backup.errors import BackupError, cannot_make
from llmgw.server.store import sqlite_file
from llmgw.server.store.errors import explain

PAGES_A_STEP = 4096


@dataclass(frozen=True)
class Snapshot:
    """The copied file, open and without a name, and what it says of itself."""

    file: BufferedRandom
    schema: str
    catalog_revision: int | None
    version: str
    """The llmgw that wrote last."""


@contextmanager
def snapshot(database: Path, folder: Path, progress: Callable[[float], None]) -> Iterator[Snapshot]:
    """Copy `database` into a file in `folder` that is gone when the block ends, however it ends.

    `progress` is told the share that is done, 0 to 1. Raises BackupError, also as StoreError's sentence.
    """
    if not database.is_file():
        raise BackupError(
            f"there is no database {database}; name the server's configuration with --config, or its state "
            "folder with --state"
        )
    sqlite_file.check(database)
    try:
        descriptor, name = tempfile.mkstemp(prefix=".llmgw-backup-", dir=folder)
    except OSError as error:
        raise cannot_make(error, Path(error.filename or folder)) from error
    with os.fdopen(descriptor, "r+b") as file:
        try:
            # SQLite opens the file here, and needs its name no more: nothing is left behind by a kill.
            target = sqlite_file.connect(Path(name))
        finally:
            os.unlink(name)
        with closing(target), closing(sqlite_file.connect(database)) as source:
            try:
                yield _copied(source, target, file, progress)
            except sqlite3.Error as error:
                raise BackupError(
                    f"{database} could not be copied: {explain(error, folder).what}; check that the disk of "
                    f"{folder} works and has room, or name a file elsewhere"
                ) from error


def facts_of(connection: sqlite3.Connection, where: Path) -> tuple[str, int | None, str]:
    """(schema, ruling catalog revision, version that wrote last). Raises BackupError for another's database."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"alembic_version", "facts"} <= tables:
        raise BackupError(f"{where} is an SQLite database, but not one of llmgw server; name the right one")
    schema = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    revision = connection.execute("SELECT max(number) FROM catalog_revisions").fetchone()
    version = connection.execute("SELECT value FROM facts WHERE key = 'version'").fetchone()
    return str(schema[0]) if schema else "", revision[0], str(version[0]) if version else "unknown"


def _copied(
    source: sqlite3.Connection,
    target: sqlite3.Connection,
    file: BufferedRandom,
    progress: Callable[[float], None],
) -> Snapshot:
    # No journal: the file has no name that one could stand beside, and nothing to go back to.
    target.execute("PRAGMA journal_mode = OFF").fetchone()
    source.execute("BEGIN")
    schema, revision, version = facts_of(source, Path("the database"))

    def told(_status: int, remaining: int, total: int) -> None:
        progress(1.0 - remaining / total if total else 1.0)

    source.backup(target, pages=PAGES_A_STEP, progress=told)
    source.execute("COMMIT")
    return Snapshot(file, schema, revision, version)
