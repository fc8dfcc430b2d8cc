"""API keys in the store: kept over restarts, gone when revoked, and nothing of a key itself on disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from llmgw.server.store.errors import StoreError
from llmgw.server.store.key_records import KeyRecord
from llmgw.server.store.keys import KEY_TOUCH_S
from llmgw.server.store.store import Store
from tests.store.running import on_a_loop


def record(key_id: str = "k1", name: str = "alice", **more: object) -> KeyRecord:
    return KeyRecord(
        id=key_id,
        name=name,
        secret_hash=key_id.encode().hex().rjust(64, "0"),
        created_at=1.0,
        created_by="ops",
        **more,  # type: ignore[arg-type]
    )


@on_a_loop
async def test_keys_outlive_the_server_with_all_that_they_may(tmp_path: Path) -> None:
    full = record(
        models=["a", "b"],
        requests_per_minute=10**12,
        tokens_per_minute=5,
        concurrency=7,
        priority=-3,
        expires_at=99.5,
    )
    store = await Store.open(tmp_path, 1.0)
    assert not store.api_keys.any_made
    await store.api_keys.create(full)
    await store.api_keys.create(record("k2", "bob"))
    await store.api_keys.change(msgspec.structs.replace(record("k2", "bob"), concurrency=1))
    store.api_keys.touch("k1", 50.0)
    store.api_keys.touch("k1", 50.0 + KEY_TOUCH_S - 1)
    await store.close()

    store = await Store.open(tmp_path, 2.0)
    assert store.api_keys.any_made
    assert store.api_keys.all() == [
        msgspec.structs.replace(full, last_used_at=50.0),
        record("k2", "bob", concurrency=1),
    ]
    await store.close()


@on_a_loop
async def test_a_revoked_key_is_gone_at_once_and_its_name_and_row_stay_apart(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, 1.0)
    await store.api_keys.create(record())
    with pytest.raises(StoreError, match="there is a key named alice already; choose another name"):
        await store.api_keys.create(record("k2"))
    assert [key.id for key in store.api_keys.all()] == ["k1"]
    store.api_keys.revoke("k1", 5.0)
    assert store.api_keys.named("alice") is None
    await store.api_keys.create(record("k2"))
    store.api_keys.touch("k1", 9.0)
    await store.api_keys.change(record("k1", priority=9))  # it was being changed meanwhile
    assert store.api_keys.get("k1") is None
    store.api_keys.revoke("k2", 6.0)
    await store.close()

    store = await Store.open(tmp_path, 2.0)
    assert store.api_keys.all() == []
    assert store.api_keys.any_made, "a gateway that had keys stays closed"
    await store.close()
    rows = sqlite3.connect(tmp_path / "llmgw.db").execute("SELECT id, revoked_at, priority FROM api_keys")
    assert sorted(rows) == [("k1", 5.0, 0), ("k2", 6.0, 0)]
