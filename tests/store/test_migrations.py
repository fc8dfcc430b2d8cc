"""Migrations: they agree with the tables, run at start after a copy, and never run half."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from llmgw.messages.agent import FabricOffer
from llmgw.server.store import sqlite_file
from llmgw.server.store.engine import migrating_engine
from llmgw.server.store.errors import StoreError
from llmgw.server.store.migrate import migrations_folder, prepare
from llmgw.server.store.schema import metadata
from llmgw.server.store.store import DATABASE_NAME, Store
from tests.store.running import ROOT, on_a_loop

NEXT = '''
"""A later schema: nodes get a note, in a table that is built anew."""
import sqlalchemy as sa
from alembic import op

revision = "9001"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("nodes", recreate="always") as batch:
        batch.add_column(sa.Column("note", sa.Text, nullable=False, server_default="none"))
    {more}
'''


HEAD = max(path.name.split("_")[0] for path in (migrations_folder() / "versions").glob("[0-9]*.py"))
"""The newest schema that is shipped."""


def later_migrations(folder: Path, more: str = "") -> Path:
    """The shipped migrations and one more."""
    shipped = migrations_folder()
    shutil.copytree(shipped, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9001_next.py").write_text(NEXT.format(head=HEAD, more=more))
    return folder


async def fill(state: Path) -> None:
    store = await Store.open(state, 1.0)
    store.put_node("node01", 1.0, address="10.0.0.1")
    store.put_cordoned("node01", True, 2.0)
    store.put_fabrics("node01", [FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True)], 2.0)
    for number in range(100):
        store.record("replica", f"r{number}", "ready", float(number))
    await store.close()


def rows(path: Path, question: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchall()


def test_the_tables_and_the_migrations_agree(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    prepare(path, 1.0)
    with migrating_engine(path).connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, metadata) == []


def test_the_tables_made_by_migrations_are_word_for_word_those_of_the_schema(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    prepare(ours, 1.0)
    sqlite_file.make_private(theirs)
    with migrating_engine(theirs).begin() as connection:
        metadata.create_all(connection)
    question = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE '%alembic%' ORDER BY name"

    def described(path: Path) -> list[tuple[object, ...]]:
        return [
            (kind, name, sorted(part.strip() for part in (sql or "").split("\n")))
            for kind, name, sql in rows(path, question)
        ]

    def loose(found: list[tuple[object, ...]]) -> list[object]:
        return [(kind, name, sorted(part.strip(" ,") for part in sql)) for kind, name, sql in found]  # type: ignore[attr-defined]

    assert loose(described(ours)) == loose(described(theirs))


@on_a_loop
async def test_a_new_store_and_an_unchanged_one_make_no_copies(tmp_path: Path) -> None:
    await fill(tmp_path)
    await (await Store.open(tmp_path, 2.0)).close()
    assert sqlite_file.backups(tmp_path / DATABASE_NAME) == []


@on_a_loop
async def test_an_older_store_is_copied_and_migrated_with_all_that_it_holds(tmp_path: Path) -> None:
    state = tmp_path / "state"
    await fill(state)
    later = later_migrations(tmp_path / "later")
    store = await Store.open(state, 86_400.0, migrations=later)
    assert store.nodes()["node01"].cordoned
    assert [fabric.name for fabric in store.fabrics()] == ["ib-a"], "the rebuilt table took its fabrics along"
    assert len(await store.history(kind="replica")) == 100
    await store.close()
    assert rows(state / DATABASE_NAME, "SELECT id, note FROM nodes") == [("node01", "none")]

    (copy,) = sqlite_file.backups(state / DATABASE_NAME)
    assert copy.name == f"{DATABASE_NAME}.backup-{HEAD}-19700102T000000Z"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert rows(copy, "SELECT version_num FROM alembic_version") == [(HEAD,)]
    assert rows(copy, "SELECT count(*) FROM history WHERE kind = 'replica'") == [(100,)]


@on_a_loop
async def test_a_copy_holds_what_a_killed_server_left_in_the_log(tmp_path: Path) -> None:
    state, left = tmp_path / "state", tmp_path / "left"
    store = await Store.open(state, 1.0)
    store.record("node", "only in the log", "e", 1.0)
    await store.flush()
    left.mkdir()
    for path in state.glob(f"{DATABASE_NAME}*"):
        shutil.copy(path, left)  # file and log as kill -9 leaves them
    await store.close()
    assert (left / f"{DATABASE_NAME}-wal").stat().st_size
    await (await Store.open(left, 2.0, migrations=later_migrations(tmp_path / "later"))).close()
    (copy,) = sqlite_file.backups(left / DATABASE_NAME)
    assert rows(copy, "SELECT subject FROM history") == [("only in the log",)]


@on_a_loop
async def test_the_newest_three_copies_are_kept(tmp_path: Path) -> None:
    await fill(tmp_path)
    path = tmp_path / DATABASE_NAME
    for day in (5, 1, 3, 2, 4):
        sqlite_file.back_up(path, "0001", day * 86_400.0)
    assert [copy.name[-16:-8] for copy in sqlite_file.backups(path)] == ["19700106", "19700105", "19700104"]


@on_a_loop
async def test_a_store_of_a_newer_version_is_refused_and_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    later = later_migrations(tmp_path / "later")
    await (await Store.open(state, 1.0, migrations=later)).close()
    before = (state / DATABASE_NAME).read_bytes()
    with pytest.raises(StoreError) as caught:
        await Store.open(state, 2.0)
    assert "was written by a newer llmgw (0." in str(caught.value)
    assert "schema 9001) than this one" in str(caught.value)
    assert "install that version again" in str(caught.value)
    assert (state / DATABASE_NAME).read_bytes() == before


@on_a_loop
async def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    state = tmp_path / "state"
    await fill(state)
    before = rows(state / DATABASE_NAME, "SELECT name, sql FROM sqlite_master ORDER BY name")
    broken = later_migrations(tmp_path / "later", more='op.execute("INSERT INTO nowhere VALUES (1)")')
    with pytest.raises(StoreError, match="no such table: nowhere"):
        await Store.open(state, 2.0, migrations=broken)
    assert rows(state / DATABASE_NAME, "SELECT name, sql FROM sqlite_master ORDER BY name") == before
    store = await Store.open(state, 3.0)
    assert len(await store.history(kind="replica")) == 100
    await store.close()


@on_a_loop
async def test_a_migration_that_leaves_a_dangling_reference_is_undone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    await fill(state)
    broken = later_migrations(tmp_path / "later", more='op.execute("DELETE FROM nodes")')
    with pytest.raises(StoreError, match="a row of node_fabrics refers to nothing"):
        await Store.open(state, 2.0, migrations=broken)
    store = await Store.open(state, 3.0)
    assert list(store.nodes()) == ["node01"]
    await store.close()


@on_a_loop
async def test_without_room_for_the_copy_nothing_is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    await fill(state)
    later = later_migrations(tmp_path / "later")

    def no_room(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sqlite_file, "_sync", no_room)
    with pytest.raises(
        StoreError, match="needs a migration and could not be copied first: there is no space left"
    ):
        await Store.open(state, 2.0, migrations=later)
    assert not list(state.glob("*backup*"))
    assert rows(state / DATABASE_NAME, "SELECT version_num FROM alembic_version") == [(HEAD,)]


@on_a_loop
async def test_migrating_leaves_logging_alone(tmp_path: Path) -> None:
    root = logging.getLogger()
    alembic = logging.getLogger("alembic")
    before = (root.level, list(root.handlers), alembic.level, list(alembic.handlers), alembic.disabled)
    await (await Store.open(tmp_path, 1.0)).close()
    assert (root.level, list(root.handlers), alembic.level, list(alembic.handlers), alembic.disabled) == before


def test_migrations_are_found_in_a_checkout_and_in_an_installed_package(tmp_path: Path) -> None:
    assert migrations_folder() == ROOT / "migrations"
    package = tmp_path / "site-packages" / "llmgw"
    shutil.copytree(ROOT / "migrations", package / "_migrations")
    assert migrations_folder(package) == package / "_migrations"
    prepare(tmp_path / "installed.db", 1.0, migrations_folder(package))
    with pytest.raises(StoreError, match="lacks its migrations"):
        migrations_folder(tmp_path / "elsewhere" / "llmgw")
