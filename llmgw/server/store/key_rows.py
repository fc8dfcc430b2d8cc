"""Every statement about API keys, as plain functions over a connection. None is SQLite's alone."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from llmgw.server.store import schema
from llmgw.server.store.errors import StoreError
from llmgw.server.store.key_records import KeptKeys, KeyRecord

_table = schema.api_keys


def kept_keys(connection: Connection) -> KeptKeys:
    """All keys that are not revoked, and whether there ever was one."""
    any_made = connection.scalar(select(_table.c.id).limit(1)) is not None
    rows = connection.execute(select(_table).where(_table.c.revoked_at.is_(None)))
    return KeptKeys(live={row.id: _record(row) for row in rows}, any_made=any_made)


def create_key(connection: Connection, key: KeyRecord) -> None:
    """Add a key. Raises StoreError when a key that is not revoked has its name."""
    live = select(_table.c.id).where((_table.c.name == key.name) & _table.c.revoked_at.is_(None))
    if connection.scalar(live) is not None:
        raise StoreError(
            f"there is a key named {key.name} already", "choose another name, or revoke that one first"
        )
    connection.execute(
        insert(_table).values(
            id=key.id,
            name=key.name,
            secret_hash=key.secret_hash,
            created_at=key.created_at,
            created_by=key.created_by,
            **_rules(key),
        )
    )


def update_key(connection: Connection, key: KeyRecord) -> None:
    """Renew what a key may do; one that was revoked meanwhile stays as it is."""
    which = (_table.c.id == key.id) & _table.c.revoked_at.is_(None)
    connection.execute(update(_table).where(which).values(**_rules(key)))


def revoke_key(connection: Connection, key_id: str, now: float) -> None:
    """Mark a key; its row stays, since what it has used is counted by its id."""
    which = (_table.c.id == key_id) & _table.c.revoked_at.is_(None)
    connection.execute(update(_table).where(which).values(revoked_at=now))


def touch_key(connection: Connection, key_id: str, now: float) -> None:
    """Say when a key was last used."""
    connection.execute(update(_table).where(_table.c.id == key_id).values(last_used_at=now))


def _rules(key: KeyRecord) -> dict[str, Any]:
    return {
        "models": key.models,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "concurrency": key.concurrency,
        "priority": key.priority,
        "expires_at": key.expires_at,
    }


def _record(row: Row[Any]) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        name=row.name,
        secret_hash=row.secret_hash,
        created_at=row.created_at,
        created_by=row.created_by,
        models=row.models,
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        concurrency=row.concurrency,
        priority=row.priority,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
    )
