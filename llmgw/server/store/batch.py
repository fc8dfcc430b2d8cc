"""A batch of writes in one transaction, and what becomes of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from llmgw.server.store import writes
from llmgw.server.store.errors import StoreError
from llmgw.server.store.queue import Write

Outcome = tuple[object, Exception | None]


def apply_batch(connection: Connection, batch: Sequence[Write], careful: bool) -> list[Outcome]:
    """Carry a batch out in the transaction that is open: (result, None) or (None, error) for each write.

    Neighbouring rows of history go in together. `careful` puts each write behind a savepoint of its own, so
    that one which cannot succeed leaves the others alone.
    """
    outcomes: list[Outcome] = []
    rows: list[dict[str, Any]] = []
    for write in batch:
        if write.history_row is not None and not careful:
            rows.append(write.history_row)
            outcomes.append((None, None))
            continue
        if rows:
            writes.insert_history(connection, rows)
            rows = []
        if careful or write.failed is not None:
            outcomes.append(_apply_alone(connection, write))
        else:
            outcomes.append((write.run(connection), None))
    if rows:
        writes.insert_history(connection, rows)
    return outcomes


def _apply_alone(connection: Connection, write: Write) -> Outcome:
    try:
        with connection.begin_nested():
            return write.run(connection), None
    except Exception as error:
        if isinstance(error, StoreError) or hopeless(error):
            return None, error
        raise


def hopeless(error: Exception) -> bool:
    """True for an error that lies in the values of a write, so that trying again cannot help."""
    if isinstance(error, DBAPIError):
        return isinstance(error, (IntegrityError, DataError))
    return isinstance(error, (StatementError, UnicodeError, OverflowError, TypeError))
