"""The audit log in the store: kept over restarts, paged by key, found through an index, and bounded."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from llmgw.messages.audit_views import AuditEntry
from llmgw.server.store import audit as audit_store
from llmgw.server.store import audit_rows
from llmgw.server.store.engine import migrating_engine
from llmgw.server.store.migrate import prepare
from llmgw.server.store.store import DATABASE_NAME, Store
from tests.store.inline import InlineStore
from tests.store.running import on_a_loop, until


def entry(number: int, **more: Any) -> AuditEntry:
    facts = {"id": 0, "at": float(number), "by": "ops", "method": "POST", "route": "/r", "subject": f"s{number}"}
    return AuditEntry(**(facts | more))


@on_a_loop
async def test_entries_outlive_the_server_and_are_paged_by_key_newest_first(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    for number in range(1, 16):
        assert store.audit.add(entry(number)) == number
    await store.close()
    store = await Store.open(tmp_path, 2.0)
    for number in range(16, 26):
        assert store.audit.add(entry(number)) == number
    await store.flush()
    pages, before = [], None
    while page := await store.audit.entries(before=before, limit=10):
        pages.append(page)
        before = page[-1].id
    await store.close()
    assert [len(page) for page in pages] == [10, 10, 5]
    found = [each for page in pages for each in page]
    assert [each.subject for each in found] == [f"s{number}" for number in reversed(range(1, 26))]
    assert found[0] == msgspec.structs.replace(entry(25), id=25)


@on_a_loop
async def test_entries_that_the_disk_does_not_take_are_read_all_the_same_and_stored_once(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    store.audit.add(entry(1))
    await store.flush()
    (tmp_path / DATABASE_NAME).rename(tmp_path / "elsewhere")
    for number in (2, 3, 4):
        store.audit.add(entry(number, by="ops" if number != 3 else "other"))
    store.audit.count(4, 7, 9.0)

    async def found(**filters: Any) -> list[int]:
        return [each.id for each in await store.audit.entries(**filters)]

    async def all_filters() -> list[list[int]]:
        return [
            await found(),
            await found(limit=2),
            await found(before=3),
            await found(by="other"),
            await found(subject="s4"),
            await found(from_s=2.0, to_s=4.0),
        ]

    wanted = [[4, 3, 2, 1], [4, 3], [2, 1], [3], [4], [3, 2]]
    assert await all_filters() == wanted
    assert (await store.audit.entries(limit=1))[0].count == 7
    assert store.findings()
    (tmp_path / "elsewhere").rename(tmp_path / DATABASE_NAME)
    await store.flush()
    assert await all_filters() == wanted
    await store.close()
    store = await Store.open(tmp_path, 2.0)
    assert await all_filters() == wanted
    await store.close()


@on_a_loop
async def test_an_entry_that_is_refused_for_good_does_not_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Store.open(tmp_path, 1.0)
    add_entry = audit_rows.add_entry

    def refuse(connection: Connection, entry: AuditEntry) -> None:
        if entry.subject == "s1":
            raise IntegrityError("insert", None, Exception("refused"))
        add_entry(connection, entry)

    monkeypatch.setattr(audit_rows, "add_entry", refuse)
    store.audit.add(entry(1))
    store.audit.add(entry(2))
    await store.flush()
    assert [each.subject for each in await store.audit.entries()] == ["s2"]
    await store.close()


@on_a_loop
async def test_entries_are_filtered_by_all_that_is_given(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    for number, (by, subject) in enumerate([("a", "n1"), ("a", "n2"), ("b", "n1"), ("", "")], start=1):
        store.audit.add(entry(number, by=by, subject=subject))
    # The clock was set back.
    store.audit.add(entry(2, by="c", subject="n3"))
    await store.flush()

    async def found(**filters: Any) -> list[int]:
        return [each.id for each in await store.audit.entries(**filters)]

    assert await found(by="a") == [2, 1]
    assert await found(by="a", subject="n1") == [1]
    assert await found(subject="n1") == [3, 1]
    assert await found(by="") == [4]
    assert await found(from_s=2.0) == [5, 4, 3, 2]
    assert await found(to_s=3.0) == [5, 2, 1]
    assert await found(from_s=2.0, to_s=3.0) == [5, 2], "by the clock, not by the order"
    assert await found(from_s=9.0) == []
    assert await found(from_s=1.0, to_s=4.0, by="a", before=2) == [1]
    await store.close()


@on_a_loop
async def test_what_an_entry_tells_of_may_happen_again(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    number = store.audit.add(entry(1))
    for count in range(2, 50):
        store.audit.count(number, count, float(count))
    await store.flush()
    (found,) = await store.audit.entries()
    await store.close()
    assert (found.at, found.count, found.last_at) == (1.0, 49, 49.0)


@on_a_loop
async def test_what_clients_send_is_kept_whatever_it_is_and_bounded(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    texts = dict.fromkeys(audit_store.CHARS_MAX, "\x00\udcff" + "x" * 10_000)
    store.audit.add(entry(1, status=10**9, **texts))
    await store.flush()
    (found,) = await store.audit.entries()
    assert store.findings() == []
    await store.close()
    for name, chars_max in audit_store.CHARS_MAX.items():
        assert len(getattr(found, name)) == chars_max
        assert getattr(found, name).startswith("\ufffd?xx")
    assert found.status == audit_store.STATUS_MAX


@on_a_loop
async def test_the_log_keeps_its_newest_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_store, "PRUNE_CHUNK_ROWS", 7)
    monkeypatch.setattr(audit_store, "PRUNE_EVERY_ROWS", 50)
    store = await Store.open(tmp_path, 1.0)
    store.audit._rows_kept = 40
    for number in range(1, 201):
        store.audit.add(entry(number))
    await until(lambda: store._writer.waiting == 0)
    ids = [each.id for each in await store.audit.entries(limit=1000)]
    await store.close()
    assert ids == list(range(200, 160, -1))


def test_an_inline_store_keeps_them_too(tmp_path: Path) -> None:
    store = InlineStore.open(tmp_path, 1.0)
    assert [store.audit.add(entry(number)) for number in (1, 2)] == [1, 2]


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({}, None),
        ({"by": "b"}, "ix_audit_by_id (by=?"),
        ({"subject": "s"}, "ix_audit_subject_id (subject=?"),
        ({"subject": "s", "by": "b"}, "ix_audit_subject_id (subject=?"),
        ({"from_s": 1.0, "to_s": 2.0}, None),
        ({"from_s": 1.0, "by": "b"}, "ix_audit_by_id (by=?"),
    ],
)
@pytest.mark.parametrize("before", [None, 500_000])
def test_every_question_walks_an_index_backwards_and_sorts_nothing(
    tmp_path: Path, filters: dict[str, Any], index: str | None, before: int | None
) -> None:
    path = tmp_path / "llmgw.db"
    prepare(path, 1.0)
    asked: list[str] = []
    with migrating_engine(path).connect() as connection:
        audit_rows.add_entry(connection, entry(1, id=1))
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_trace_callback(asked.append)
        nothing: dict[str, Any] = {"by": None, "subject": None, "from_s": None, "to_s": None}
        audit_rows.entries(connection, **(nothing | filters), before=before, limit=10)
        driver.set_trace_callback(None)
        plans = [
            " ".join(row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {text}"))
            for text in asked
            if text.startswith("SELECT")
        ]
    assert "TEMP B-TREE" not in " ".join(plans)
    assert index is None or f"USING INDEX {index}" in plans[-1]
    assert index or "ix_audit_at" not in plans[-1]
    if "from_s" in filters:
        assert "COVERING INDEX ix_audit_at" in plans[0], "times are looked up in what holds nothing else"
