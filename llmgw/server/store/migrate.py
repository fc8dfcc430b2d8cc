"""Brings the store's file to the newest schema: checked, copied, migrated. It blocks; run it in a thread."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select

import llmgw
from llmgw.server.store import sqlite_file
from llmgw.server.store.engine import migrating_engine
from llmgw.server.store.errors import StoreError, explain
from llmgw.server.store.schema import facts

log = structlog.get_logger(__name__)

_PACKAGE = Path(llmgw.__file__).parent
# Alembic keeps the migration that runs in a module variable.
_one_at_a_time = threading.Lock()


def migrations_folder(package: Path = _PACKAGE) -> Path:
    """Where the migrations lie: inside an installed package, or beside the package in a checkout.

    Raises StoreError when they are in neither place.
    """
    for folder in (package / "_migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise StoreError(
        f"this installation of llmgw lacks its migrations ({package / '_migrations'})",
        "install it again: pip install --force-reinstall llmgw",
    )


def prepare(path: Path, now: float, migrations: Path | None = None) -> None:
    """Make or check the database at `path` and migrate it to the newest schema of `migrations`.

    A copy of the file is made first, when there is something to migrate. `now` (seconds since the epoch) names
    the copy. Raises StoreError, whatever goes wrong; the file is then as it was.
    """
    migrations = migrations or migrations_folder()
    try:
        sqlite_file.make_private(path)
        sqlite_file.check(path)
        engine = migrating_engine(path)
        with _one_at_a_time, engine.connect() as connection:
            _migrate(connection, path, now, migrations)
    except StoreError:
        raise
    except Exception as error:  # a migration is a program of its own: it may fail in any way
        raise explain(error, path) from error


def check_known(path: Path, called: str, migrations: Path | None = None) -> None:
    """Raise StoreError for a database that `prepare` would refuse, such as one that a newer llmgw wrote.

    `called` takes the path's place in the sentence.
    """
    migrations = migrations or migrations_folder()
    try:
        script = ScriptDirectory(str(migrations))
        engine = migrating_engine(path)
        with engine.connect() as connection:
            known = {revision.revision for revision in script.walk_revisions()}
            _current_revision(connection, called, known, "install that version first, and restore with it")
    except StoreError:
        raise
    except Exception as error:
        raise explain(error, path) from error


def _migrate(connection: Connection, path: Path, now: float, migrations: Path) -> None:
    config = Config()
    # Config reads its values with interpolation, in which a percent sign is doubled.
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    newest = script.get_current_head()
    known = {revision.revision for revision in script.walk_revisions()}
    current = _current_revision(
        connection,
        str(path),
        known,
        f"install that version again, or put one of {path.name}.backup-* from before the upgrade back with "
        "`llmgw server restore FILE`",
    )
    connection.rollback()
    if current == newest:
        return
    if current is not None:
        copy = sqlite_file.back_up(path, current, now)
        log.info("store backed up", copy=str(copy), schema=current)
    command.upgrade(config, "head")
    log.info("store migrated", path=str(path), schema_before=current, schema=newest)


def _current_revision(connection: Connection, called: str, known: set[str], newer_remedy: str) -> str | None:
    """The schema that the file has; None for a new one. Raises StoreError for one that is not ours to touch."""
    current = MigrationContext.configure(connection).get_current_revision()
    tables = set(inspect(connection).get_table_names())
    if current is None:
        if tables - {"alembic_version"}:
            raise StoreError(
                f"{called} is an SQLite database of some other program (it has a table {min(tables)})",
                "move it away or set state to another folder",
            )
        return None
    if current not in known:
        writer = None
        if "facts" in tables:
            writer = connection.scalar(select(facts.c.value).where(facts.c.key == "version"))
        raise StoreError(
            f"{called} was written by a newer llmgw ({writer or 'of unknown version'}, schema {current}) than "
            f"this one ({llmgw.__version__})",
            newer_remedy,
        )
    return current
