"""History: paged by key, found through an index, and bounded."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from llmgw.server.store import interface, reads, schema
from llmgw.server.store.engine import migrating_engine
from llmgw.server.store.migrate import prepare
from llmgw.server.store.store import Store
from tests.store.running import on_a_loop, until


@on_a_loop
async def test_history_is_read_newest_first_and_paged_by_key(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    for number in range(25):
        store.record("replica", f"r{number}", "ready", float(number), reason="why", model="m", nodes=["n1", "n2"])
    await store.flush()
    pages = []
    before = None
    while page := await store.history(before=before, limit=10):
        pages.append(page)
        before = page[-1].id
    await store.close()
    assert [len(page) for page in pages] == [10, 10, 5]
    entries = [entry for page in pages for entry in page]
    assert [entry.subject for entry in entries] == [f"r{number}" for number in reversed(range(25))]
    first = entries[-1]
    assert (first.kind, first.event, first.at, first.reason) == ("replica", "ready", 0.0, "why")
    assert (first.model, first.nodes) == ("m", ["n1", "n2"])


@on_a_loop
async def test_history_is_filtered_by_all_that_is_given(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    for subject, kind, model in [
        ("a", "replica", "m"),
        ("a", "operator", "m"),
        ("b", "replica", "m"),
        ("c", "node", None),
    ]:
        store.record(kind, subject, "happened", 1.0, model=model)
    await store.flush()

    async def found(**filters: Any) -> list[tuple[str, str]]:
        return [(entry.subject, entry.kind) for entry in await store.history(**filters)]

    assert await found(subject="a") == [("a", "operator"), ("a", "replica")]
    assert await found(subject="a", kind="replica") == [("a", "replica")]
    assert await found(kind="replica", model="m") == [("b", "replica"), ("a", "replica")]
    assert await found(model="m", subject="b", kind="replica") == [("b", "replica")]
    assert await found(model="m", subject="c") == []
    await store.close()


@on_a_loop
async def test_a_limit_that_makes_no_sense_is_brought_into_bounds(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    for _ in range(interface.HISTORY_PAGE_MAX + 1):
        store.record("node", "n", "e", 1.0)
    await store.flush()
    assert len(await store.history(limit=0)) == 1
    assert len(await store.history(limit=10**9)) == interface.HISTORY_PAGE_MAX
    await store.close()


@on_a_loop
async def test_text_that_an_engine_printed_is_kept_whatever_it_is(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    store.record("replica", "r1", "failed", 1.0, reason="\x00 \udcff ü " + "x" * 10_000)
    await store.flush()
    (entry,) = await store.history()
    assert store.findings() == []
    await store.close()
    assert entry.reason.startswith("\ufffd ? ü xxx")
    assert len(entry.reason) == interface.REASON_CHARS_MAX


FILTERS = [
    {"subject": "s"},
    {"kind": "k"},
    {"model": "m"},
    {"subject": "s", "kind": "k"},
    {"subject": "s", "model": "m", "kind": "k"},
    {"model": "m", "kind": "k"},
    {},
]


@pytest.mark.parametrize("filters", FILTERS, ids=lambda filters: "+".join(filters) or "all")
@pytest.mark.parametrize("before", [None, 500_000])
def test_every_question_walks_an_index_backwards_and_sorts_nothing(
    tmp_path: Path, filters: dict[str, str], before: int | None
) -> None:
    path = tmp_path / "llmgw.db"
    prepare(path, 1.0)
    asked: list[str] = []
    with migrating_engine(path).connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_trace_callback(asked.append)
        reads.history(
            connection, **{"subject": None, "kind": None, "model": None, **filters}, before=before, limit=10
        )
        driver.set_trace_callback(None)
        (question,) = [text for text in asked if text.startswith("SELECT")]
        plan = " ".join(row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {question}"))
    assert "TEMP B-TREE" not in plan
    if filters:
        sharpest = next(name for name in ("subject", "model", "kind") if name in filters)
        by_kind = sharpest == "model" and "kind" in filters
        index, asked_by = ("model_kind", "model=? AND kind=?") if by_kind else (sharpest, f"{sharpest}=?")
        assert f"USING INDEX ix_history_{index}_id ({asked_by}" in plan
        assert before is None or "id<?" in plan


@on_a_loop
async def test_history_keeps_the_newest_rows_and_never_gives_an_id_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interface, "PRUNE_CHUNK_ROWS", 7)
    store = await Store.open(tmp_path, 1.0)
    for number in range(100):
        store.record("node", f"n{number}", "e", 1.0)
    await store.close()
    store = await Store.open(tmp_path, 2.0, history_rows_kept=40)
    await until(lambda: store._writer.waiting == 0)
    entries = await store.history(limit=1000)
    assert [entry.subject for entry in entries] == [f"n{number}" for number in reversed(range(60, 100))]
    store.prune_history(0)
    await until(lambda: store._writer.waiting == 0)
    assert await store.history() == []
    store.record("node", "later", "e", 3.0)
    await store.flush()
    assert [entry.id for entry in await store.history()] == [101]
    await store.close()


@on_a_loop
async def test_history_stays_bounded_while_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interface, "PRUNE_EVERY_ROWS", 50)
    store = await Store.open(tmp_path, 1.0, history_rows_kept=100)
    for _ in range(1_000):
        store.record("node", "n", "e", 1.0)
    await until(lambda: store._writer.waiting == 0)
    assert 100 <= len(await store.history(limit=1000)) <= 150
    await store.close()


def test_the_columns_that_history_is_asked_by_each_have_an_index_that_ends_with_the_id() -> None:
    assert {tuple(column.name for column in index.columns) for index in schema.history.indexes} == {
        ("subject", "id"),
        ("model", "id"),
        ("kind", "id"),
        ("model", "kind", "id"),
    }
