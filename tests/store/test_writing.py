"""One writer: batches, readers beside it, and writes that can never succeed."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import Connection

from llmgw.server.store import writer, writes
from llmgw.server.store.errors import StoreError
from llmgw.server.store.queue import Write
from llmgw.server.store.records import NodeRecord
from llmgw.server.store.store import DATABASE_NAME, Store
from tests.store.running import on_a_loop, until


@on_a_loop
async def test_fifty_readers_beside_five_thousand_writes_never_find_the_database_locked(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    writing = True
    pages = 0

    async def read() -> None:
        nonlocal pages
        while writing:
            ids = [entry.id for entry in await store.history(model="m", limit=50)]
            assert ids == sorted(ids, reverse=True)
            assert all(one - other == 1 for one, other in pairwise(ids)), "half a batch was seen"
            pages += 1

    async def write(start: int) -> None:
        for number in range(start, start + 500):
            store.record("replica", f"r{number}", "ready", float(number), model="m", nodes=["n1"])
            if number % 50 == 0:
                await store.flush()

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(read())
        await asyncio.gather(*(write(500 * part) for part in range(10)))
        await store.flush()
        writing = False
    assert (await store.history(limit=1))[0].id == 5_000
    assert pages >= 50
    assert store.findings() == []
    await store.close()


@on_a_loop
async def test_what_waits_is_committed_together(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    await store.flush()
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as other:

        def commits() -> int:
            version: int = other.execute("PRAGMA data_version").fetchone()[0]
            return version

        before = commits()
        for number in range(1_000):
            store.record("node", f"n{number}", "e", 1.0)
        await store.flush()
        # data_version counts what this connection noticed: once, for whatever was committed in between.
        assert commits() == before + 1
        assert other.execute("SELECT count(*) FROM history").fetchone()[0] == 1_000
    await store.close()


@on_a_loop
async def test_a_write_that_can_never_succeed_is_dropped_alone_and_reported(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    store.put_node("node01", 1.0)
    twice = NodeRecord(id="node01", first_seen=1.0, last_registered=1.0)
    store.record("node", "before", "e", 1.0)
    store._enqueue(Write(apply=partial(writes.insert_node, node=twice)))
    store.record("node", "after", "e", float("nan"))
    store.record("node", "after", "e", 2.0)
    await store.flush(5)
    assert [entry.subject for entry in await store.history()] == ["after", "before"]
    (finding,) = store.findings()
    assert finding.check == "store-write-refused"
    assert finding.what.startswith("2 changes could never be stored")
    await store.close()


@on_a_loop
async def test_a_shell_that_holds_the_write_lock_only_delays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "llmgw.server.store.engine._ALL", ["PRAGMA busy_timeout = 20", "PRAGMA foreign_keys = ON"]
    )
    store = await Store.open(tmp_path, 1.0)
    await store.flush()
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        store.record("node", "n", "e", 1.0)
        await until(lambda: bool(store.findings()))
        assert "is held by another program" in store.findings()[0].what
        assert await store.history() == []
        shell.execute("ROLLBACK")
    await store.flush(10)
    assert store.findings() == []
    assert len(await store.history()) == 1
    await store.close()


@on_a_loop
async def test_more_waiting_writes_than_should_be_is_a_finding_and_none_is_lost(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    await store.create_token("t", "0" * 64, 1.0)
    for number in range(10_100):
        store.record("node", f"n{number}", "e", 1.0)
    store.touch_token("t", 5.0)
    assert [finding.check for finding in store.findings()] == ["store-behind"]
    await store.flush()
    assert store.findings() == []
    assert (await store.history(limit=1))[0].subject == "n10099"
    assert (
        await store._read(lambda connection: connection.exec_driver_sql("SELECT count(*) FROM history").scalar())
        == 10_100
    )
    await store.close()


@on_a_loop
async def test_a_flush_waits_for_what_came_before_it_and_not_for_what_comes_after(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    store.record("node", "n", "e", 1.0)
    flushes = [asyncio.create_task(store.flush()) for _ in range(5)]
    await asyncio.gather(*flushes)
    await store.flush(0.0)
    assert len(await store.history()) == 1
    await store.close()


@on_a_loop
async def test_a_caller_who_hangs_up_leaves_memory_and_disk_agreeing(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    asked = asyncio.create_task(store.create_token("t", "0" * 64, 1.0))
    await asyncio.sleep(0)
    asked.cancel()
    await store.flush()
    assert asked.cancelled()
    assert store.token_hashes() == {"t": "0" * 64}
    await store.revoke_token("t", 2.0)
    await store.close()
    store = await Store.open(tmp_path, 3.0)
    assert store.token_hashes() == {}
    await store.close()


@on_a_loop
async def test_two_who_make_the_same_token_at_once_get_one_token(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    made = await asyncio.gather(
        store.create_token("t", "0" * 64, 1.0), store.create_token("t", "1" * 64, 1.0), return_exceptions=True
    )
    assert [type(one) for one in made] == [type(None), StoreError]
    assert store.token_hashes() == {"t": "0" * 64}
    await store.close()


@on_a_loop
async def test_a_closed_store_refuses_and_closing_twice_is_harmless(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.record("node", "n", "e", 1.0)


@on_a_loop
async def test_the_writer_outlives_an_error_that_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Store.open(tmp_path, 1.0)
    await store.flush()
    real = writer.apply_batch

    def broken(connection: Connection, batch: object, careful: bool) -> object:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(writer, "apply_batch", broken)
    store.record("node", "n", "e", 1.0)
    await until(lambda: bool(store.findings()))
    assert "unforeseen" in store.findings()[0].what
    monkeypatch.setattr(writer, "apply_batch", real)
    await store.flush(10)
    assert len(await store.history()) == 1
    await store.close()


@on_a_loop
async def test_reads_cannot_write(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    with pytest.raises(StoreError, match="cannot be written"):
        await store._read(lambda connection: connection.exec_driver_sql("DELETE FROM history"))
    await store.close()
