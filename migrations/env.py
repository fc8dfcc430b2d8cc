"""Runs the migrations on the connection that the store hands over; see README.md for making a new one.

It leaves logging alone: the server has set its own up by the time this runs.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from llmgw.server.store.schema import metadata


def run(connection: Connection) -> None:
    """All pending revisions in one transaction: a half-migrated file cannot come to be."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,  # SQLite cannot alter most things in place; a batch rebuilds the table
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()
        # Foreign keys are off while tables are rebuilt, so they are looked at once before the commit.
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if broken is not None:
            raise RuntimeError(f"after the migration a row of {broken[0]} refers to nothing")


handed_over = context.config.attributes.get("connection")
if handed_over is not None:
    run(handed_over)
elif (path := context.get_x_argument(as_dictionary=True).get("database")) is not None:
    from sqlalchemy import create_engine

    with create_engine(f"sqlite:///{path}").connect() as made_here:
        run(made_here)
else:
    raise SystemExit("name the database that the migration is made against: alembic -x database=FILE …")
