"""What is put into the store is there for the next server, in the real store and in an inline one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.lives import Life
from llmgw.messages.agent import FabricOffer
from llmgw.server.store.errors import StoreError
from llmgw.server.store.interface import TOKEN_TOUCH_S, StoreInterface
from llmgw.server.store.records import Revocation
from llmgw.server.store.secrets import hash_secret, matching_token
from llmgw.server.store.store import Store
from tests.store.inline import InlineStore
from tests.store.running import on_a_loop

Opener = Callable[[float], Awaitable[StoreInterface]]


@pytest.fixture(params=["real", "inline"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the store of this test: `await opened(now)`."""

    async def open_it(now: float) -> StoreInterface:
        if request.param == "real":
            return await Store.open(tmp_path / "state", now)
        return InlineStore.open(tmp_path / "state", now)

    return open_it


LIFE = Life(boot_id="b1", instance="i1", instance_started_at=12.5, counter=1)


@on_a_loop
async def test_a_node_its_flags_and_its_life_outlive_the_server(opened: Opener) -> None:
    store = await opened(1.0)
    store.put_node("node01", 10.0, address="10.0.0.1", life=LIFE)
    store.put_node("node02", 10.0)
    store.put_cordoned("node01", True, 11.0)
    store.put_draining("node02", True, 12.0, force=True)
    store.put_node("node01", 20.0, address="10.0.0.1", life=Life(**{**LIFE_FIELDS, "counter": 2}))
    before = store.nodes()
    await store.close()

    store = await opened(2.0)
    after = store.nodes()
    await store.close()
    assert after == before
    assert after["node01"].first_seen == 10.0
    assert after["node01"].last_registered == 20.0
    assert after["node01"].cordoned_at == 11.0
    assert not after["node01"].draining
    assert after["node01"].life == Life(**{**LIFE_FIELDS, "counter": 2})
    assert after["node02"].draining
    assert after["node02"].drain_forced
    assert after["node02"].life is None


LIFE_FIELDS = {"boot_id": "b1", "instance": "i1", "instance_started_at": 12.5, "counter": 1}


@on_a_loop
async def test_clearing_a_flag_outlives_the_server(opened: Opener) -> None:
    store = await opened(1.0)
    store.put_node("node01", 10.0)
    store.put_cordoned("node01", True, 11.0)
    store.put_draining("node01", True, 11.0)
    store.put_cordoned("node01", False, 12.0)
    store.put_draining("node01", False, 12.0)
    await store.close()
    store = await opened(2.0)
    node = store.nodes()["node01"]
    await store.close()
    assert not node.cordoned
    assert not node.draining


@on_a_loop
async def test_a_drain_that_is_asked_for_again_keeps_its_beginning_and_takes_the_new_force(
    opened: Opener,
) -> None:
    store = await opened(1.0)
    store.put_node("node01", 10.0)
    store.put_draining("node01", True, 11.0)
    store.put_draining("node01", True, 12.0, force=True)
    node = store.nodes()["node01"]
    await store.close()
    assert (node.draining_at, node.drain_forced) == (11.0, True)


@on_a_loop
async def test_a_flag_for_an_unknown_node_is_refused_with_a_sentence(opened: Opener) -> None:
    store = await opened(1.0)
    with pytest.raises(StoreError, match="there is no node node09"):
        store.put_cordoned("node09", True, 2.0)
    await store.close()


@on_a_loop
async def test_a_removed_node_is_gone_with_its_fabrics_and_flags_but_its_history_stays(opened: Opener) -> None:
    store = await opened(1.0)
    store.put_node("node01", 10.0)
    store.put_draining("node01", True, 10.0)
    store.put_fabrics("node01", [FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True)], 10.0)
    store.record("node", "node01", "lost", 11.0, reason="silent")
    await store.remove_node("node01", 9.0)
    await store.remove_node("node01", 9.0)
    await store.flush()
    store.put_fabrics("node01", [FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True)], 12.0)
    await store.close()

    store = await opened(2.0)
    assert store.nodes() == {}
    assert store.fabrics() == []
    assert [entry.event for entry in await store.history(subject="node01")] == ["lost"]
    store.put_node("node01", 30.0)
    await store.close()
    store = await opened(3.0)
    again = store.nodes()["node01"]
    await store.close()
    assert (again.first_seen, again.draining) == (30.0, False)


@on_a_loop
async def test_a_fabrics_changes_are_history_and_repetition_is_not(opened: Opener) -> None:
    store = await opened(1.0)
    store.put_node("node01", 10.0)

    def offer(*adapters: str, reason: str | None = None) -> FabricOffer:
        return FabricOffer(name="ib-a", adapters=list(adapters), usable=bool(adapters), reason=reason)

    store.put_fabrics("node01", [offer("mlx5_0:1", "mlx5_1:1")], 10.0)
    store.put_fabrics("node01", [offer("mlx5_0:1", "mlx5_1:1")], 11.0)
    store.put_fabrics("node01", [offer("mlx5_0:1", reason="mlx5_1 port 1 is DOWN")], 12.0)
    store.put_fabrics("node01", [offer(reason="all ports are DOWN")], 13.0)
    store.put_fabrics("node01", [offer(reason="all ports are still DOWN")], 14.0)
    await store.flush()
    (fabric,) = store.fabrics()
    assert (fabric.usable, fabric.changed_at, fabric.reason) == (False, 13.0, "all ports are still DOWN")
    store.put_fabrics("node01", [], 15.0)
    await store.close()

    store = await opened(2.0)
    entries = await store.history(kind="fabric", subject="ib-a")
    assert store.fabrics() == []
    await store.close()
    assert [(entry.event, entry.at, entry.nodes) for entry in reversed(entries)] == [
        ("usable", 10.0, ["node01"]),
        ("changed", 12.0, ["node01"]),
        ("unusable", 13.0, ["node01"]),
        ("gone", 15.0, ["node01"]),
    ]
    assert entries[2].reason == "adapters mlx5_0:1, mlx5_1:1 became mlx5_0:1"


@on_a_loop
async def test_a_fabric_is_read_back_as_it_was_said(opened: Opener) -> None:
    store = await opened(1.0)
    store.put_node("node01", 10.0)
    said = FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True, rate_gbps=400.0)
    store.put_fabrics("node01", [said], 10.0)
    store.put_fabrics(
        "node01", [FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True, rate_gbps=200.0)], 11
    )
    before = store.fabrics()
    await store.close()
    store = await opened(2.0)
    after = store.fabrics()
    await store.close()
    assert after == before
    assert after[0].rate_gbps == 200.0


CATALOG = Catalog(
    models=[
        CatalogModel(
            name="org/large",
            aliases=["large"],
            profiles=[Profile(engine="sim", nodes=2, gpus_per_node=4, replicas=2, load_timeout=90.5)],
        )
    ]
)


@on_a_loop
async def test_catalog_revisions_are_numbered_and_the_newest_rules(opened: Opener) -> None:
    store = await opened(1.0)
    assert await store.latest_catalog() is None
    assert await store.add_catalog_revision(Catalog(), by="server.yaml", note="seed", now=10.0) == 1
    assert await store.add_catalog_revision(CATALOG, by="admin", note="apply", now=11.0) == 2
    await store.close()

    store = await opened(2.0)
    latest = await store.latest_catalog()
    assert latest == (2, CATALOG)
    assert latest[1].models[0].profile_hashes == CATALOG.models[0].profile_hashes
    assert await store.catalog_revision(1) == Catalog()
    assert await store.catalog_revision(3) is None
    revisions = await store.catalog_revisions()
    older = await store.catalog_revisions(before=2)
    await store.close()
    assert [(one.number, one.at, one.by, one.note) for one in revisions] == [
        (2, 11.0, "admin", "apply"),
        (1, 10.0, "server.yaml", "seed"),
    ]
    assert older == revisions[1:]


@on_a_loop
async def test_a_token_is_recognised_by_its_secret_until_it_is_revoked(opened: Opener) -> None:
    store = await opened(1.0)
    await store.create_token("laptop", hash_secret("s1"), 10.0)
    await store.create_token("ci", hash_secret("s2"), 11.0)
    await store.close()
    store = await opened(2.0)
    assert matching_token(store.token_hashes(), "s1") == "laptop"
    assert matching_token(store.token_hashes(), "s2") == "ci"
    assert matching_token(store.token_hashes(), "s3") is None
    await store.revoke_token("laptop", 12.0)
    assert matching_token(store.token_hashes(), "s1") is None
    await store.close()
    store = await opened(3.0)
    assert matching_token(store.token_hashes(), "s1") is None
    assert [token.name for token in store.tokens()] == ["ci"]
    await store.close()


@on_a_loop
async def test_a_token_name_in_use_is_refused_and_a_revoked_one_is_free_again(opened: Opener) -> None:
    store = await opened(1.0)
    await store.create_token("laptop", hash_secret("s1"), 10.0)
    with pytest.raises(StoreError, match="there is a token named laptop already"):
        await store.create_token("laptop", hash_secret("s2"), 11.0)
    await store.revoke_token("laptop", 12.0)
    with pytest.raises(StoreError, match="there is no token named 'laptop'"):
        await store.revoke_token("laptop", 13.0)
    await store.create_token("laptop", hash_secret("s3"), 14.0)
    assert matching_token(store.token_hashes(), "s1") is None
    assert matching_token(store.token_hashes(), "s3") == "laptop"
    await store.close()


@on_a_loop
async def test_a_name_that_is_no_token_name_is_refused_with_a_sentence(opened: Opener) -> None:
    store = await opened(1.0)
    with pytest.raises(StoreError, match="is not a token name"):
        await store.create_token("a b\n", hash_secret("s1"), 10.0)
    await store.close()


@on_a_loop
async def test_the_last_use_of_a_token_is_kept_to_the_minute(opened: Opener) -> None:
    store = await opened(1.0)
    await store.create_token("laptop", hash_secret("s1"), 10.0)
    for second in range(50):
        store.touch_token("laptop", 100.0 + second)
    assert store.tokens()[0].last_used_at == 100.0
    store.touch_token("laptop", 100.0 + TOKEN_TOUCH_S)
    store.touch_token("unknown", 100.0)
    await store.close()
    store = await opened(2.0)
    assert store.tokens()[0].last_used_at == 100.0 + TOKEN_TOUCH_S
    await store.close()


@on_a_loop
async def test_a_revoked_certificate_stays_revoked_when_the_list_is_gone(opened: Opener) -> None:
    one = Revocation(serial="0a1b", revoked_at=5.0)
    other = Revocation(serial="0a1c", revoked_at=6.0)
    store = await opened(1.0)
    store.add_revocations([one, other])
    store.add_revocations([one])
    store.add_revocations([])
    await store.close()
    store = await opened(2.0)
    store.add_revocations([other])
    assert store.revocations() == [one, other]
    await store.close()


@on_a_loop
async def test_each_start_is_an_epoch_of_its_own(opened: Opener) -> None:
    epochs = []
    for now in (100.0, 100.0, 50.0):
        store = await opened(now)
        epochs.append(store.epoch)
        await store.close()
    assert len(set(epochs)) == 3
    assert epochs == sorted(epochs)


@on_a_loop
async def test_facts_are_left_for_later_lives(opened: Opener) -> None:
    store = await opened(1.0)
    store.put_fact("first_start", "1", 1.0)
    store.put_fact("first_start", "2", 2.0)
    await store.close()
    store = await opened(2.0)
    assert await store.fact("first_start") == "2"
    assert await store.fact("version") is not None
    assert await store.fact("nothing") is None
    await store.close()
