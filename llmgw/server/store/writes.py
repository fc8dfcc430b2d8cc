"""Every change of the store, as plain functions over a connection. No statement here is SQLite's alone.

They run in the writer's transaction, one after the other, so that `look, then change` is safe in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, func, insert, select, update

from llmgw.messages.fabric_test_views import FabricTestResult
from llmgw.server.store import schema
from llmgw.server.store.errors import StoreError
from llmgw.server.store.records import CatalogRevision, FabricRecord, NodeRecord, Revocation, TokenRecord

_BIGINT_MAX = 2**63 - 1  # an agent may send any number


def insert_history(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Add rows (the columns of `history` without `id`) in this order."""
    connection.execute(insert(schema.history), list(rows))


def insert_history_once(connection: Connection, row: dict[str, Any]) -> None:
    """Add a row unless one with its kind, subject, event and reason is there."""
    table = schema.history
    same = select(table.c.reason).where(
        table.c.subject == row["subject"],
        # As expressions, so that no index but the subject's is walked.
        table.c.kind.concat("") == row["kind"],
        table.c.event.concat("") == row["event"],
    )
    if row["reason"] not in connection.scalars(same):
        insert_history(connection, [row])


def prune_history(connection: Connection, keep_rows: int, chunk_rows: int) -> int:
    """Delete the oldest rows beyond the newest `keep_rows`, at most `chunk_rows`; returns how many went."""
    history = schema.history
    newest_to_go = connection.scalar(
        select(history.c.id).order_by(history.c.id.desc()).offset(keep_rows).limit(1)
    )
    if newest_to_go is None:
        return 0
    last_of_chunk = connection.scalar(
        select(history.c.id)
        .where(history.c.id <= newest_to_go)
        .order_by(history.c.id)
        .offset(chunk_rows - 1)
        .limit(1)
    )
    return connection.execute(
        delete(history).where(history.c.id <= (newest_to_go if last_of_chunk is None else last_of_chunk))
    ).rowcount


def insert_node(connection: Connection, node: NodeRecord) -> None:
    """Add a node with everything known of it."""
    connection.execute(
        insert(schema.nodes).values(
            id=node.id,
            first_seen=node.first_seen,
            cordoned_at=node.cordoned_at,
            draining_at=node.draining_at,
            drain_forced=node.drain_forced,
            **_registration(node),
        )
    )


def update_registration(connection: Connection, node: NodeRecord) -> None:
    """Renew what a registration says. It makes no node, so that it may come late or not at all."""
    connection.execute(update(schema.nodes).where(schema.nodes.c.id == node.id).values(**_registration(node)))


def update_flags(connection: Connection, node: NodeRecord) -> None:
    """Renew what an operator said of a node."""
    connection.execute(
        update(schema.nodes)
        .where(schema.nodes.c.id == node.id)
        .values(cordoned_at=node.cordoned_at, draining_at=node.draining_at, drain_forced=node.drain_forced)
    )


def delete_node(connection: Connection, node_id: str, removed_at: float) -> None:
    """Forget a node and its fabrics, but not that it was removed. History, revocations and tokens stay."""
    connection.execute(delete(schema.node_fabrics).where(schema.node_fabrics.c.node_id == node_id))
    connection.execute(delete(schema.nodes).where(schema.nodes.c.id == node_id))
    connection.execute(delete(schema.removed_nodes).where(schema.removed_nodes.c.id == node_id))
    connection.execute(insert(schema.removed_nodes).values(id=node_id, removed_at=removed_at))


def put_fabric(connection: Connection, fabric: FabricRecord) -> None:
    """Add or renew one fabric of a node that is kept."""
    table = schema.node_fabrics
    values = {
        "adapters": fabric.adapters,
        "usable": fabric.usable,
        "reason": fabric.reason,
        "rate_gbps": fabric.rate_gbps,
        "changed_at": fabric.changed_at,
    }
    which = (table.c.node_id == fabric.node) & (table.c.name == fabric.name)
    if not connection.execute(update(table).where(which).values(**values)).rowcount:
        connection.execute(insert(table).values(node_id=fabric.node, name=fabric.name, **values))


def update_fabric_details(connection: Connection, fabric: FabricRecord) -> None:
    """Renew reason and rate only. It makes no row, so that it may come late or not at all."""
    table = schema.node_fabrics
    connection.execute(
        update(table)
        .where((table.c.node_id == fabric.node) & (table.c.name == fabric.name))
        .values(reason=fabric.reason, rate_gbps=fabric.rate_gbps)
    )


def delete_fabric(connection: Connection, node_id: str, name: str) -> None:
    """Forget a fabric that the node no longer declares."""
    table = schema.node_fabrics
    connection.execute(delete(table).where((table.c.node_id == node_id) & (table.c.name == name)))


def add_catalog_revision(connection: Connection, body: str, by: str, note: str, now: float) -> CatalogRevision:
    """Add the next revision and return it with its number."""
    table = schema.catalog_revisions
    number = (connection.scalar(select(func.max(table.c.number))) or 0) + 1
    connection.execute(insert(table).values(number=number, at=now, by=by, note=note, body=body))
    return CatalogRevision(number=number, at=now, by=by, note=note)


def create_token(connection: Connection, token: TokenRecord) -> None:
    """Add a token; one of that name that was revoked makes room. Raises StoreError when the name is in use."""
    table = schema.admin_tokens
    live = select(table.c.name).where((table.c.name == token.name) & table.c.revoked_at.is_(None))
    if connection.scalar(live) is not None:
        raise StoreError(
            f"there is a token named {token.name} already", "choose another name, or revoke that one first"
        )
    connection.execute(delete(table).where(table.c.name == token.name))
    connection.execute(
        insert(table).values(name=token.name, secret_hash=token.secret_hash, created_at=token.created_at)
    )


def revoke_token(connection: Connection, name: str, now: float) -> None:
    """Mark a token; its row stays until the name is used again."""
    table = schema.admin_tokens
    connection.execute(
        update(table).where((table.c.name == name) & table.c.revoked_at.is_(None)).values(revoked_at=now)
    )


def touch_token(connection: Connection, name: str, secret_hash: str, now: float) -> None:
    """Say when a token was last used. The hash tells it from a later token of the same name."""
    table = schema.admin_tokens
    connection.execute(
        update(table)
        .where((table.c.name == name) & (table.c.secret_hash == secret_hash))
        .values(last_used_at=now)
    )


def add_revocation(connection: Connection, revocation: Revocation) -> None:
    """Remember a revoked certificate; one that is remembered already stays as it is."""
    table = schema.revocations
    which = table.c.serial == revocation.serial
    if connection.scalar(select(table.c.serial).where(which)) is None:
        connection.execute(insert(table).values(serial=revocation.serial, revoked_at=revocation.revoked_at))


def add_fabric_test(connection: Connection, result: FabricTestResult) -> None:
    """Keep the result of a measurement between two nodes."""
    connection.execute(insert(schema.fabric_tests).values(**msgspec.structs.asdict(result)))


def prune_fabric_tests(connection: Connection, keep_rows: int) -> None:
    """Delete all results but the newest `keep_rows`."""
    table = schema.fabric_tests
    newest_to_go = connection.scalar(select(table.c.id).order_by(table.c.id.desc()).offset(keep_rows).limit(1))
    if newest_to_go is not None:
        connection.execute(delete(table).where(table.c.id <= newest_to_go))


def put_fact(connection: Connection, key: str, value: str, now: float) -> None:
    """Add or replace one fact of the server."""
    table = schema.facts
    if not connection.execute(update(table).where(table.c.key == key).values(value=value, at=now)).rowcount:
        connection.execute(insert(table).values(key=key, value=value, at=now))


def _registration(node: NodeRecord) -> dict[str, Any]:
    life = node.life
    return {
        "address": node.address,
        "last_registered": node.last_registered,
        "boot_id": life.boot_id if life else None,
        "instance": life.instance if life else None,
        "instance_started_at": life.instance_started_at if life else None,
        "counter": min(life.counter, _BIGINT_MAX) if life else None,
    }
