"""The audit log over a restore: what was asked for since the backup stays in it, and the restore is added."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from llmgw.server.store import sqlite_file

BY = "restore"
ROUTE = "llmgw server restore"


def keep_audit(old: Path | None, new: Path, message: str, now: float) -> None:
    """Take entries over that only the replaced database has, and add one of the restore itself, at `now`.

    `old` is None where nothing can be read. A backup of before there was an audit log stays without one. Raises
    sqlite3.Error.
    """
    with closing(sqlite_file.connect(new)) as connection:
        if old is not None:
            connection.execute("ATTACH DATABASE ? AS old", (str(old),))
        connection.execute("BEGIN IMMEDIATE")
        columns = _columns(connection, "main")
        if columns:
            if old is not None and _columns(connection, "old") == columns:
                connection.execute(
                    "INSERT INTO main.audit SELECT * FROM old.audit WHERE id > (SELECT coalesce(max(id), 0) FROM "
                    "main.audit)"
                )
            connection.execute(
                "INSERT INTO main.audit (id, at, by, address, method, route, subject, summary, status, message, "
                "count) SELECT coalesce(max(id), 0) + 1, ?, ?, '', '', ?, 'state', '', 200, ?, 1 FROM main.audit",
                (now, BY, ROUTE, message),
            )
        connection.execute("COMMIT")


def _columns(connection: sqlite3.Connection, which: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA {which}.table_info(audit)")]
