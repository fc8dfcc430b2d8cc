"""The statements about physical fabrics and their changes, as plain functions over a connection."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, delete, func, insert, or_, select, update

from llmgw.messages.admin_fabrics import FabricChangeView
from llmgw.server.store import schema
from llmgw.server.store.fabric_records import FabricChange, PhysicalFabricRecord


def known_fabrics(connection: Connection) -> dict[str, PhysicalFabricRecord]:
    """Every physical fabric that was ever known and not forgotten, by id."""
    table = schema.physical_fabrics
    return {
        row.id: PhysicalFabricRecord(**{name: getattr(row, name) for name in _names(table)})
        for row in connection.execute(select(table))
    }


def _names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def put_fabric(connection: Connection, fabric_id: str, values: dict[str, Any]) -> None:
    """Add a fabric, or renew what `values` names of it."""
    table = schema.physical_fabrics
    if not connection.execute(update(table).where(table.c.id == fabric_id).values(**values)).rowcount:
        empty: dict[str, Any] = {"names": [], "managers": [], "switches": []}
        connection.execute(insert(table).values(id=fabric_id, **{**empty, **values}))


def forget_fabric(connection: Connection, fabric_id: str) -> None:
    """Forget a fabric. What changed on it stays."""
    connection.execute(delete(schema.physical_fabrics).where(schema.physical_fabrics.c.id == fabric_id))


def add_changes(connection: Connection, changes: Sequence[FabricChange]) -> None:
    """Add changes, in this order."""
    connection.execute(insert(schema.fabric_changes), [msgspec.structs.asdict(change) for change in changes])


def changes(
    connection: Connection,
    *,
    ids: Collection[str],
    names: Collection[str],
    ports_since: float,
    before: int | None,
    limit: int,
) -> list[FabricChangeView]:
    """Changes of fabrics with these ids or names, newest first; those of ports no older than `ports_since`."""
    table = schema.fabric_changes
    query = (
        select(table)
        .where(
            or_(table.c.fabric.in_(ids), table.c.name.in_(names)),
            or_(table.c.area != "port", table.c.at >= ports_since),
        )
        .order_by(table.c.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(table.c.id < before)
    return [
        FabricChangeView(**{name: getattr(row, name) for name in _names(table)})
        for row in connection.execute(query)
    ]


def counts(connection: Connection, since: float) -> dict[tuple[str | None, str | None], int]:
    """(id, name) → how many changes there were since then."""
    table = schema.fabric_changes
    # The newest row before then: ids grow with time, and have an index.
    first = connection.scalar(select(table.c.id).where(table.c.at < since).order_by(table.c.id.desc()).limit(1))
    query = select(table.c.fabric, table.c.name, func.count()).group_by(table.c.fabric, table.c.name)
    rows = connection.execute(query.where(table.c.id > (first or 0)))
    return {(fabric, name): count for fabric, name, count in rows}


def prune_changes(connection: Connection, area: str, keep_rows: int, chunk_rows: int) -> int:
    """Delete an area's oldest changes beyond the newest `keep_rows`, at most `chunk_rows`; returns how many."""
    table = schema.fabric_changes
    of_area = select(table.c.id).where(table.c.area == area)
    newest_to_go = connection.scalar(of_area.order_by(table.c.id.desc()).offset(keep_rows).limit(1))
    if newest_to_go is None:
        return 0
    going = of_area.where(table.c.id <= newest_to_go).order_by(table.c.id).limit(chunk_rows)
    return connection.execute(delete(table).where(table.c.id.in_(going))).rowcount
