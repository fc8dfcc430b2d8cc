"""What operators are told, and what comes of their changes, while the store takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from llmgw.fleet.model import NodeState
from llmgw.server import backend
from llmgw.server.admin_file import write_admin_file
from llmgw.server.store.errors import StoreError
from llmgw.server.store.store import DATABASE_NAME, Store
from tests.server.test_catalog_owner import NOW, Plane, plane


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "CHANGE_WAIT_S", 0.3)
    monkeypatch.setattr(backend, "HISTORY_WAIT_S", 0.3)


def test_history_that_is_stored_is_still_shown(tmp_path: Path) -> None:
    async def body(made: Plane) -> None:
        made.store.record("node", "n1", "ready", NOW)
        await made.store.flush()
        put_away(tmp_path)
        made.store.record("node", "n1", "lost", NOW)
        entries = await made.get("history")
        assert [entry["event"] for entry in entries if entry["subject"] == "n1"] == ["ready"]
        put_back(tmp_path)

    run(tmp_path, body)


@pytest.mark.parametrize("verb", ["cordon", "drain"])
def test_a_change_that_was_refused_does_not_rule_later(tmp_path: Path, verb: str) -> None:
    async def body(made: Plane) -> None:
        made.store.put_node("n1", NOW)
        await made.store.flush()
        put_away(tmp_path)
        message = await made.refused(await made.post(f"nodes/n1/{verb}"), 503, "store")
        assert "nothing was changed" in message
        put_back(tmp_path)
        await made.store.flush()
        node = made.hub.fleet.nodes["n1"]
        assert (node.cordoned, node.draining) == (False, False)

    run(tmp_path, body)

    async def next_life() -> None:
        store = await Store.open(tmp_path / "state", NOW)
        kept = store.nodes()["n1"]
        assert (kept.cordoned, kept.draining) == (False, False)
        await store.close()

    asyncio.run(next_life())


def test_a_removal_that_was_refused_does_not_happen_later(tmp_path: Path) -> None:
    async def body(made: Plane) -> None:
        made.store.put_node("n1", NOW)
        made.store.put_cordoned("n1", True, NOW)
        await made.store.flush()
        node = made.hub.fleet.nodes["n1"]
        node.state, node.session = NodeState.LOST, None
        put_away(tmp_path)
        message = await made.refused(await made.delete("nodes/n1"), 503, "store")
        assert "nothing was changed" in message
        put_back(tmp_path)
        await made.store.flush()
        assert made.hub.fleet.nodes["n1"] is node
        assert made.store.nodes()["n1"].cordoned

    run(tmp_path, body)

    async def next_life() -> None:
        store = await Store.open(tmp_path / "state", NOW)
        assert store.nodes()["n1"].cordoned
        await store.close()

    asyncio.run(next_life())


def test_an_admin_file_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    async def body(made: Plane) -> None:
        (tmp_path / "state" / "admin.json.new").mkdir()
        with pytest.raises(StoreError, match=r"admin\.json\.new"):
            await write_admin_file(tmp_path / "state", made.store, "http://x", None, NOW)

    run(tmp_path, body)


def put_away(tmp_path: Path) -> None:
    (tmp_path / "state" / DATABASE_NAME).rename(tmp_path / "elsewhere")


def put_back(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").rename(tmp_path / "state" / DATABASE_NAME)


def run(tmp_path: Path, body: Callable[[Plane], Awaitable[None]]) -> None:
    async def main() -> None:
        async with plane(tmp_path / "state") as made:
            await asyncio.wait_for(body(made), 20.0)

    asyncio.run(main())
