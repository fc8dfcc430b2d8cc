"""The statements about usage, as plain functions over a connection. No statement here is SQLite's alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, select, update

from llmgw.messages.routes import UsageBatch
from llmgw.messages.usage_views import UsageEntry
from llmgw.server.store import schema

COUNTS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens", "estimated")
HOUR_S = 3600
DAY_S = 86_400
PRUNE_SPAN_S = 7 * DAY_S
"""What one transaction deletes at most."""


def add_usage(connection: Connection, batches: Sequence[UsageBatch], now: float) -> list[bool]:
    """Add batches, each once: True for those that were new, in their order."""
    fresh = []
    for batch in batches:
        new = _is_new(connection, batch, now)
        if new:
            _add_rows(connection, batch)
        fresh.append(new)
    return fresh


def prune_usage(connection: Connection, before_s: int, now: float) -> bool:
    """Delete the oldest hours before that time, and ledgers that ended as long ago. True when there is more."""
    table, ledgers = schema.usage, schema.usage_ledgers
    connection.execute(delete(ledgers).where(ledgers.c.at < before_s))
    oldest = connection.scalar(select(func.min(table.c.hour)))
    if oldest is None or oldest >= before_s:
        return False
    end = min(before_s, oldest + PRUNE_SPAN_S)
    connection.execute(delete(table).where(table.c.hour < end))
    return bool(end < before_s)


def read_usage(
    connection: Connection,
    *,
    from_s: int,
    to_s: int,
    key: str | None,
    model: str | None,
    by: Collection[str],
    limit: int,
) -> list[UsageEntry]:
    """Sums of the hours from `from_s` on and before `to_s`, at most `limit`, in the order of time, key, model."""
    table = schema.usage
    groups: dict[str, ColumnElement[Any]] = {}
    if "hour" in by:
        groups["at"] = table.c.hour
    elif "day" in by:
        groups["at"] = table.c.hour - table.c.hour % DAY_S
    if "key" in by:
        groups["key"] = table.c.key
    if "model" in by:
        groups["model"] = table.c.model
    sums = [func.coalesce(func.sum(table.c[name]), 0).label(name) for name in COUNTS]
    query = select(*(column.label(f"by_{name}") for name, column in groups.items()), *sums)
    query = query.where(table.c.hour >= from_s, table.c.hour < to_s).limit(limit)
    if key is not None:
        query = query.where(table.c.key == key)
    if model is not None:
        query = query.where(table.c.model == model)
    if groups:
        query = query.group_by(*groups.values()).order_by(*groups.values())
    found = []
    for row in connection.execute(query).mappings():
        where: dict[str, Any] = {name: row[f"by_{name}"] for name in groups}
        where |= {name: int(row[name]) for name in COUNTS}
        found.append(UsageEntry(**where))
    return found


def _is_new(connection: Connection, batch: UsageBatch, now: float) -> bool:
    table = schema.usage_ledgers
    known = connection.scalar(select(table.c.number).where(table.c.ledger == batch.ledger))
    if known is None:
        connection.execute(insert(table).values(ledger=batch.ledger, number=batch.number, at=now))
        return True
    if batch.number <= known:
        return False
    connection.execute(update(table).where(table.c.ledger == batch.ledger).values(number=batch.number, at=now))
    return True


def _add_rows(connection: Connection, batch: UsageBatch) -> None:
    table = schema.usage
    hours = {row.hour_s for row in batch.rows}
    there = {
        tuple(found)
        for found in connection.execute(
            select(table.c.hour, table.c.key, table.c.model).where(table.c.hour.in_(hours))
        )
    }
    values = [
        {"at_hour": row.hour_s, "of_key": row.key, "of_model": row.model}
        | {f"more_{name}": getattr(row, name) for name in COUNTS}
        for row in batch.rows
    ]
    known = [each for each in values if (each["at_hour"], each["of_key"], each["of_model"]) in there]
    new = [each for each in values if (each["at_hour"], each["of_key"], each["of_model"]) not in there]
    if known:
        change = update(table).where(
            table.c.hour == bindparam("at_hour"),
            table.c.key == bindparam("of_key"),
            table.c.model == bindparam("of_model"),
        )
        more = {name: table.c[name] + bindparam(f"more_{name}") for name in COUNTS}
        connection.execute(change.values(more), known)
    if new:
        connection.execute(
            insert(table),
            [
                {"hour": each["at_hour"], "key": each["of_key"], "model": each["of_model"]}
                | {name: each[f"more_{name}"] for name in COUNTS}
                for each in new
            ],
        )
