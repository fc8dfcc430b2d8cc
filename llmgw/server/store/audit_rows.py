"""Every statement about the audit log, as plain functions over a connection. None is SQLite's alone."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, delete, func, insert, select, update

from llmgw.messages.audit_views import AuditEntry
from llmgw.server.store import schema

_table = schema.audit


def last_id(connection: Connection) -> int:
    """The highest id there is; 0 when there is none."""
    return connection.scalar(select(func.max(_table.c.id))) or 0


def add_entry(connection: Connection, entry: AuditEntry) -> None:
    """Add one entry under its own id."""
    connection.execute(insert(_table).values(**msgspec.structs.asdict(entry)))


def count_entry(connection: Connection, entry_id: int, count: int, last_at: float) -> None:
    """Say how often an entry has happened by now. It makes no row, so that it may come late or not at all."""
    connection.execute(update(_table).where(_table.c.id == entry_id).values(count=count, last_at=last_at))


def prune_entries(connection: Connection, up_to_id: int, chunk_rows: int) -> int:
    """Delete the oldest entries with ids up to `up_to_id`, at most `chunk_rows`; returns how many went."""
    going = select(_table.c.id).where(_table.c.id <= up_to_id).order_by(_table.c.id).limit(chunk_rows)
    return connection.execute(delete(_table).where(_table.c.id.in_(going))).rowcount


def entries(
    connection: Connection,
    *,
    by: str | None,
    subject: str | None,
    from_s: float | None,
    to_s: float | None,
    before: int | None,
    limit: int,
) -> list[AuditEntry]:
    """Entries that match all that is given, newest first, with ids below `before` and times in [from_s, to_s).

    As in `reads.history` only the sharpest condition may use its index. Times become bounds of ids first, over an
    index that holds nothing else: the clock may have been set back, so that they do not simply grow with the ids.
    """
    query = select(_table).order_by(_table.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(_table.c.id < before)
    # As expressions, so that the index of times is not walked in place of the ids.
    in_time = [
        *([] if from_s is None else [_table.c.at + 0.0 >= from_s]),
        *([] if to_s is None else [_table.c.at + 0.0 < to_s]),
    ]
    if in_time:
        lowest, highest = _ids_between(connection, from_s, to_s)
        if lowest is None:
            return []
        query = query.where(_table.c.id >= lowest, _table.c.id <= highest, *in_time)
    indexed = False
    for column, value in ((_table.c.subject, subject), (_table.c.by, by)):
        if value is not None:
            query = query.where(column.concat("") == value if indexed else column == value)
            indexed = True
    return [AuditEntry(**row) for row in connection.execute(query).mappings()]


def _ids_between(
    connection: Connection, from_s: float | None, to_s: float | None
) -> tuple[int | None, int | None]:
    bounds = select(func.min(_table.c.id), func.max(_table.c.id))
    if from_s is not None:
        bounds = bounds.where(_table.c.at >= from_s)
    if to_s is not None:
        bounds = bounds.where(_table.c.at < to_s)
    lowest, highest = connection.execute(bounds).one()
    return lowest, highest
