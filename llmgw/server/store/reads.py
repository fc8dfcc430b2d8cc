"""Every question to the store, as plain functions over a connection. No statement here is SQLite's alone."""

from __future__ import annotations

from collections import deque
from typing import Any

from sqlalchemy import Connection, Row, select

from llmgw.fleet.lives import Life
from llmgw.messages.admin import HistoryEntry
from llmgw.messages.fabric_test_views import FabricTestResult
from llmgw.server.store import audit_rows, fabric_rows, key_rows, schema, writes
from llmgw.server.store.records import (
    FABRIC_TESTS_KEPT,
    CatalogRevision,
    FabricRecord,
    Kept,
    NodeRecord,
    Revocation,
    TokenRecord,
)


def begin_epoch(connection: Connection, now: float, version: str) -> Kept:
    """Begin a server's life: the next epoch, the version that writes from now on, and all that memory holds.

    An epoch is `<count>-<start in seconds>`: unlike any before, also when the store was lost in between.
    """
    count = int(fact(connection, "epoch_count") or 0) + 1
    writes.put_fact(connection, "epoch_count", str(count), now)
    writes.put_fact(connection, "version", version, now)
    return Kept(
        epoch=f"{count:06d}-{int(now)}",
        nodes={row.id: _node(row) for row in connection.execute(select(schema.nodes))},
        fabrics={
            (row.node_id, row.name): _fabric(row) for row in connection.execute(select(schema.node_fabrics))
        },
        tokens={row.name: _token(row) for row in connection.execute(_live_tokens)},
        revocations={
            row.serial: Revocation(serial=row.serial, revoked_at=row.revoked_at)
            for row in connection.execute(select(schema.revocations))
        },
        removed_nodes={row.id: row.removed_at for row in connection.execute(select(schema.removed_nodes))},
        fabric_tests=deque(_fabric_tests(connection), maxlen=FABRIC_TESTS_KEPT),
        physical_fabrics=fabric_rows.known_fabrics(connection),
        api_keys=key_rows.kept_keys(connection),
        audit_last_id=audit_rows.last_id(connection),
    )


def fact(connection: Connection, key: str) -> str | None:
    """One fact of the server, or None."""
    value: str | None = connection.scalar(select(schema.facts.c.value).where(schema.facts.c.key == key))
    return value


def history(
    connection: Connection,
    *,
    subject: str | None,
    kind: str | None,
    model: str | None,
    before: int | None,
    limit: int,
) -> list[HistoryEntry]:
    """Entries that match all that is given, newest first, with ids below `before`.

    Only the sharpest of the conditions may use its index, of which each ends with the id: the others are
    written as expressions, or the database could choose to walk all entries of a kind to find one model's. A
    subject is sharpest, then a model, of which a kind has an index of its own.
    """
    table = schema.history
    query = select(table).order_by(table.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(table.c.id < before)
    for column, value in ((table.c.subject, subject), (table.c.model, model), (table.c.kind, kind)):
        if value is not None:
            beside = subject is not None and column is not table.c.subject
            query = query.where(column.concat("") == value if beside else column == value)
    return [
        HistoryEntry(
            id=row.id,
            at=row.at,
            kind=row.kind,
            subject=row.subject,
            event=row.event,
            reason=row.reason,
            model=row.model,
            nodes=row.nodes,
        )
        for row in connection.execute(query)
    ]


def catalog_revisions(connection: Connection, before: int | None, limit: int) -> list[CatalogRevision]:
    """Revisions without their bodies, newest first, with numbers below `before`."""
    table = schema.catalog_revisions
    query = select(table.c.number, table.c.at, table.c.by, table.c.note).order_by(table.c.number.desc())
    if before is not None:
        query = query.where(table.c.number < before)
    return [
        CatalogRevision(number=row.number, at=row.at, by=row.by, note=row.note)
        for row in connection.execute(query.limit(limit))
    ]


def catalog_body(connection: Connection, number: int | None) -> tuple[int, str] | None:
    """(number, body) of a revision, or of the newest for None; None when there is no such revision."""
    table = schema.catalog_revisions
    query = select(table.c.number, table.c.body).order_by(table.c.number.desc()).limit(1)
    if number is not None:
        query = query.where(table.c.number == number)
    row = connection.execute(query).first()
    return None if row is None else (row.number, row.body)


_live_tokens = select(schema.admin_tokens).where(schema.admin_tokens.c.revoked_at.is_(None))


def _node(row: Row[Any]) -> NodeRecord:
    life = None
    if row.boot_id is not None:
        life = Life(
            boot_id=row.boot_id,
            instance=row.instance,
            instance_started_at=row.instance_started_at,
            counter=row.counter,
        )
    return NodeRecord(
        id=row.id,
        address=row.address,
        first_seen=row.first_seen,
        last_registered=row.last_registered,
        cordoned_at=row.cordoned_at,
        draining_at=row.draining_at,
        drain_forced=row.drain_forced,
        life=life,
    )


def _fabric(row: Row[Any]) -> FabricRecord:
    return FabricRecord(
        name=row.name,
        node=row.node_id,
        adapters=row.adapters,
        usable=row.usable,
        reason=row.reason,
        rate_gbps=row.rate_gbps,
        changed_at=row.changed_at,
    )


def _fabric_tests(connection: Connection) -> list[FabricTestResult]:
    """The newest results, oldest first."""
    table = schema.fabric_tests
    rows = connection.execute(select(table).order_by(table.c.id.desc()).limit(FABRIC_TESTS_KEPT))
    return [
        FabricTestResult(
            test_id=row.test_id,
            at=row.at,
            fabric=row.fabric,
            rail=row.rail,
            sender=row.sender,
            sender_port=row.sender_port,
            receiver=row.receiver,
            receiver_port=row.receiver_port,
            gbps=row.gbps,
            limit_gbps=row.limit_gbps,
            limited_by=row.limited_by,
            grade=row.grade,
            words=row.words,
        )
        for row in rows
    ][::-1]


def _token(row: Row[Any]) -> TokenRecord:
    return TokenRecord(
        name=row.name,
        secret_hash=row.secret_hash,
        created_at=row.created_at,
        last_used_at=row.last_used_at,
    )
