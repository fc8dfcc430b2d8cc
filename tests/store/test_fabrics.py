"""What is known of fabrics, and what changed on them, is there for the next server; and it is bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from llmgw.fabric.changes import cabling_of
from llmgw.fabric.managers import read_managers
from llmgw.fabric.report import analyse
from llmgw.server.fabrics.book import FabricBook
from llmgw.server.fabrics.known import KnownFabric
from llmgw.server.fabrics.recognition import MapTarget
from llmgw.server.fabrics.remembering import cabling_text, remember, restore
from llmgw.server.store.fabric_records import FabricChange
from llmgw.server.store.fabrics import DAY_S
from llmgw.server.store.interface import StoreInterface
from llmgw.server.store.store import Store
from tests.fabric.generate import fat_tree
from tests.fabric.smir import MASTER, smir
from tests.store.inline import InlineStore
from tests.store.running import on_a_loop

Opener = Callable[[float], Awaitable[StoreInterface]]


@pytest.fixture(params=["real", "inline"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    async def open_it(now: float) -> StoreInterface:
        if request.param == "real":
            return await Store.open(tmp_path / "state", now)
        return InlineStore.open(tmp_path / "state", now)

    return open_it


def change(at: float, **changes: object) -> FabricChange:
    fields: dict[str, object] = {"area": "cabling", "kind": "cable gone", "what": f"at {at}", "fabric": "0x1"}
    return FabricChange(at=at, **{**fields, **changes})  # type: ignore[arg-type]


@on_a_loop
async def test_a_fabric_is_known_to_the_next_server_with_its_cabling(opened: Opener) -> None:
    store = await opened(1.0)
    book = FabricBook()
    cabling = cabling_of(analyse(fat_tree(nodes=1, rails=2, leaves=2, spines=1).text()).topology)
    said = read_managers(smir((0xA1, 1, 14, MASTER)))
    book.restore(KnownFabric("0xa1", ("ib-a",), "ok", said, 5.0, master_changed_at=4.0), [0xA1, 0xA2], [0xB1])
    remember(book, store.fabric_watch)
    store.fabric_watch.put("0xa1", cabling=cabling_text(cabling), cabling_at=6.0)
    store.fabric_watch.put("0xa1", accepted=cabling_text(cabling), accepted_at=7.0, accepted_by="ops")
    await store.close()

    store = await opened(2.0)
    book = FabricBook()
    restore(book, store.fabric_watch)
    await store.close()
    fabric = book.known["0xa1"]
    assert (fabric.names, fabric.managers, fabric.managers_at) == (("ib-a",), said, 5.0)
    assert fabric.answer == "unknown", "nobody has answered this server yet"
    assert (fabric.cabling, fabric.accepted, fabric.accepted_by) == (cabling, cabling, "ops")
    identity = book.identity("0xa1")
    assert (identity.managers, identity.switches) == (frozenset([0xA1, 0xA2]), frozenset([0xB1]))


@on_a_loop
async def test_what_was_other_than_accepted_is_so_after_a_restart_before_any_map(opened: Opener) -> None:
    store = await opened(1.0)
    made = fat_tree(nodes=1, rails=2, leaves=2, spines=1)
    accepted = cabling_of(analyse(made.text()).topology)
    made.rerate(made.switches[0], max(made.switches[0].cables), "4xHDR")
    today = cabling_of(analyse(made.text()).topology)
    store.fabric_watch.put("0xa1", names=["ib-a"], cabling=cabling_text(today), cabling_at=6.0)
    store.fabric_watch.put("0xa1", accepted=cabling_text(accepted), accepted_at=5.0, accepted_by="ops")
    await store.close()

    store = await opened(2.0)
    book = FabricBook()
    restore(book, store.fabric_watch)
    await store.close()
    assert [change.kind for change in book.known["0xa1"].differences] == ["rate changed"]
    assert [finding.check for finding in book.findings(10.0)] == ["fabric-cabling-differs"]
    book.not_mapped(MapTarget("0xa1"), "the tool hangs")
    words = " ".join(finding.what for finding in book.findings(10.0))
    assert "it has not been mapped since the server started" in words


@on_a_loop
async def test_what_another_version_kept_costs_only_itself(opened: Opener) -> None:
    store = await opened(1.0)
    store.fabric_watch.put("0xa1", names=["ib-a"], said='{"strange": 1}', cabling="not JSON")
    await store.close()
    store = await opened(2.0)
    book = FabricBook()
    restore(book, store.fabric_watch)
    store.fabric_watch.forget("0xa1")
    await store.close()
    assert (book.known["0xa1"].names, book.known["0xa1"].cabling) == (("ib-a",), None)
    store = await opened(3.0)
    assert store.fabric_watch.known() == []
    await store.close()


@on_a_loop
async def test_changes_are_listed_newest_first_by_id_and_name_and_ports_for_a_day(opened: Opener) -> None:
    store = await opened(1.0)
    now = 10 * DAY_S
    old, fresh = now - 2 * DAY_S, now - 60
    store.fabric_watch.add_changes(
        [
            change(old, kind="cable new"),
            change(old, area="port", kind="port state", fabric=None, name="ib-a"),
            change(fresh, area="port", kind="port rate", fabric=None, name="ib-a", what="a\x00b" + "x" * 5000),
            change(fresh, fabric="0x2", name="ib-b"),
        ]
    )
    await store.flush()
    found = await store.fabric_watch.changes(ids=["0x1"], names=["ib-a"], now=now)
    assert [one.kind for one in found] == ["port rate", "cable new"]
    assert found[0].what.startswith("a\ufffdb")
    assert len(found[0].what) == 1000
    page = await store.fabric_watch.changes(ids=["0x1"], names=[], now=now, before=found[0].id, limit=1)
    assert [one.kind for one in page] == ["cable new"]
    assert await store.fabric_watch.counts(now) == {(None, "ib-a"): 1, ("0x2", "ib-b"): 1}
    await store.close()


@on_a_loop
async def test_a_port_that_flaps_does_not_drive_the_cabling_out(opened: Opener) -> None:
    store = await opened(1.0)
    watch = store.fabric_watch
    watch.add_changes([change(1.0)])
    watch.add_changes([change(float(number), area="port", kind="port state") for number in range(50)])
    watch.prune("port", 10)
    watch.prune("cabling", 10)
    await store.flush()
    found = await watch.changes(ids=["0x1"], names=[], now=60.0, limit=1000)
    assert len(found) == 11
    assert found[-1].area == "cabling"
    assert [one.what for one in found[:2]] == ["at 49.0", "at 48.0"]
    await store.close()
