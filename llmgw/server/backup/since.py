"""What is taken over from the database that a backup replaces: an older state must let nobody in again.

Keys, tokens and certificates revoked since the backup stay revoked. What was made since works no more.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from llmgw.server.store import sqlite_file


class Since(msgspec.Struct, frozen=True, kw_only=True):
    """What the replaced database had that the backup had not."""

    catalog_revision: int | None = None
    """The revision that ruled."""
    stops: list[str] = []
    """`MODEL/PROFILE` of which the backup's catalog wants fewer replicas, or none."""
    kept_revoked: list[str] = []
    """What was revoked since, and stays so: `key NAME`, `token NAME`, `certificate SERIAL`, `node NODE`."""
    lost: list[str] = []
    """What was made since, and does not work afterwards: `key NAME`, `token NAME`."""


def compare(old: Path, new: Path) -> Since:
    """What differs, of two sound databases. Raises sqlite3.Error when the old one cannot be read."""
    with closing(_both(old, new)) as both:
        revision = _one(both, "SELECT max(number) FROM old.catalog_revisions")
        return Since(
            catalog_revision=revision,
            stops=_stops(_catalog(both, "old"), _catalog(both, "main")),
            kept_revoked=[
                *_names(both, "key", _KEYS_REVOKED),
                *_names(both, "token", _TOKENS_REVOKED),
                *_names(both, "certificate", _SERIALS_REVOKED),
                *_names(both, "node", _NODES_REMOVED),
            ],
            lost=[*_names(both, "key", _KEYS_MADE), *_names(both, "token", _TOKENS_MADE)],
        )


def keep_revoked(old: Path, new: Path, now: float) -> None:
    """Revoke in the new database what is revoked in the old one. Raises sqlite3.Error.

    Keys that only the old one has are kept as revoked at `now` (seconds since the epoch): a gateway that has had
    a key must not open because the backup is of before that.
    """
    with closing(_both(old, new)) as both:
        both.execute("BEGIN IMMEDIATE")
        if _has(both, "old", "api_keys") and _has(both, "main", "api_keys"):
            both.execute(
                "UPDATE main.api_keys SET revoked_at = (SELECT o.revoked_at FROM old.api_keys o WHERE o.id = "
                "main.api_keys.id) WHERE revoked_at IS NULL AND id IN (SELECT id FROM old.api_keys WHERE "
                "revoked_at IS NOT NULL)"
            )
            if _columns(both, "old", "api_keys") == _columns(both, "main", "api_keys"):
                both.execute(
                    "CREATE TEMP TABLE since AS SELECT * FROM old.api_keys WHERE id NOT IN (SELECT id FROM "
                    "main.api_keys)"
                )
                both.execute("UPDATE since SET revoked_at = coalesce(revoked_at, ?)", (now,))
                both.execute("INSERT OR IGNORE INTO main.api_keys SELECT * FROM since")
        both.execute(
            "UPDATE main.admin_tokens SET revoked_at = (SELECT o.revoked_at FROM old.admin_tokens o WHERE "
            "o.secret_hash = main.admin_tokens.secret_hash) WHERE revoked_at IS NULL AND secret_hash IN (SELECT "
            "secret_hash FROM old.admin_tokens WHERE revoked_at IS NOT NULL)"
        )
        both.execute("INSERT OR IGNORE INTO main.revocations SELECT serial, revoked_at FROM old.revocations")
        if _has(both, "old", "removed_nodes") and _has(both, "main", "removed_nodes"):
            both.execute(
                "INSERT INTO main.removed_nodes SELECT id, removed_at FROM old.removed_nodes WHERE true "
                "ON CONFLICT (id) DO UPDATE SET removed_at = max(removed_at, excluded.removed_at)"
            )
            # Else the next server waits for it, and tells people to look for it.
            both.execute(f"DELETE FROM main.node_fabrics WHERE node_id IN ({_GONE})")
            both.execute(f"DELETE FROM main.nodes WHERE id IN ({_GONE})")
        both.execute("COMMIT")


_KEYS_REVOKED = (
    "api_keys",
    "SELECT n.name FROM main.api_keys n JOIN old.api_keys o ON o.id = n.id WHERE n.revoked_at IS NULL AND "
    "o.revoked_at IS NOT NULL ORDER BY n.name",
)
_TOKENS_REVOKED = (
    "admin_tokens",
    "SELECT n.name FROM main.admin_tokens n JOIN old.admin_tokens o ON o.secret_hash = n.secret_hash WHERE "
    "n.revoked_at IS NULL AND o.revoked_at IS NOT NULL ORDER BY n.name",
)
_SERIALS_REVOKED = (
    "revocations",
    "SELECT serial FROM old.revocations WHERE serial NOT IN (SELECT serial FROM main.revocations) "
    "ORDER BY serial",
)
# Removed, and not enrolled anew.
_GONE = "SELECT id FROM old.removed_nodes WHERE id NOT IN (SELECT id FROM old.nodes)"
_NODES_REMOVED = (
    "removed_nodes",
    f"SELECT id FROM old.removed_nodes o WHERE id IN ({_GONE}) AND NOT EXISTS (SELECT 1 FROM main.removed_nodes "
    "n WHERE n.id = o.id AND n.removed_at >= o.removed_at) ORDER BY id",
)
_KEYS_MADE = (
    "api_keys",
    "SELECT name FROM old.api_keys WHERE revoked_at IS NULL AND id NOT IN (SELECT id FROM main.api_keys) "
    "ORDER BY name",
)
_TOKENS_MADE = (
    "admin_tokens",
    "SELECT name FROM old.admin_tokens WHERE revoked_at IS NULL AND secret_hash NOT IN (SELECT secret_hash FROM "
    "main.admin_tokens) ORDER BY name",
)


def _both(old: Path, new: Path) -> sqlite3.Connection:
    connection = sqlite_file.connect(new)
    connection.execute("ATTACH DATABASE ? AS old", (str(old),))
    return connection


def _has(both: sqlite3.Connection, which: str, table: str) -> bool:
    question = f"SELECT 1 FROM {which}.sqlite_master WHERE type = 'table' AND name = ?"
    return both.execute(question, (table,)).fetchone() is not None


def _columns(both: sqlite3.Connection, which: str, table: str) -> list[str]:
    return [row[1] for row in both.execute(f"PRAGMA {which}.table_info({table})")]


def _names(both: sqlite3.Connection, what: str, asked: tuple[str, str]) -> list[str]:
    table, question = asked
    # An older schema lacks a table.
    if not (_has(both, "old", table) and _has(both, "main", table)):
        return []
    return [f"{what} {name}" for (name,) in both.execute(question)]


def _one(both: sqlite3.Connection, question: str) -> Any:
    return both.execute(question).fetchone()[0]


def _catalog(both: sqlite3.Connection, which: str) -> dict[str, int]:
    """`MODEL/PROFILE` → wanted replicas, of the revision that rules."""
    found = both.execute(f"SELECT body FROM {which}.catalog_revisions ORDER BY number DESC LIMIT 1").fetchone()
    try:
        models = json.loads(found[0])["models"] if found else []
        return {
            f"{model['name']}/{profile['name']}": int(profile["replicas"])
            for model in models
            for profile in model.get("profiles", [])
        }
    except (ValueError, TypeError, KeyError):
        return {}


def _stops(before: dict[str, int], after: dict[str, int]) -> list[str]:
    return sorted(name for name, count in before.items() if after.get(name, 0) < count)
