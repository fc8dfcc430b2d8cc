"""What changed between maps, and which physical fabric is which, also across a failover."""

from __future__ import annotations

import msgspec

from llmgw.fabric.changes import Cabling, cabling_of, compare
from llmgw.fabric.ibnetdiscover import read_ibnetdiscover
from llmgw.fabric.identity import Observation, PhysicalFabric, settle_identities
from llmgw.fabric.topology import build_topology
from tests.fabric.generate import Fabric, fat_tree

A = "0x0000000000000401"


def cabling(made: Fabric) -> Cabling:
    kept = cabling_of(build_topology(read_ibnetdiscover(made.text())))
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Cabling) == kept
    return kept


def unplug(made: Fabric, node: int, port: int) -> None:
    other, other_port, _ = made.switches[node].cables.pop(port)
    del other.cables[other_port]


def test_the_same_map_has_no_change() -> None:
    assert compare(cabling(fat_tree()), cabling(fat_tree())) == []


def test_a_rate_a_lost_cable_and_a_moved_one_are_each_one_change() -> None:
    before = cabling(fat_tree())
    made = fat_tree(degraded=1)
    unplug(made, 4, 2)
    unplug(made, 5, 3)
    made.join(made.switches[5], 3, made.switches[1], 55)
    changes = compare(before, cabling(made))
    assert sorted(change.kind for change in changes) == ["cable gone", "cable moved", "rate changed"]
    moved = next(change for change in changes if change.kind == "cable moved")
    assert "port 3 of spine-2 (0x" in moved.what
    assert "now to port 55 of leaf-2 (0x" in moved.what
    assert [(change.before, change.after) for change in changes if change.kind == "rate changed"] == [
        ("4xNDR", "4xHDR")
    ]


def test_the_cables_of_a_switch_that_is_gone_are_told_with_it() -> None:
    made = fat_tree()
    for port in list(made.switches[5].cables):
        unplug(made, 5, port)
    del made.switches[5]
    (gone,) = compare(cabling(fat_tree()), cabling(made))
    assert gone.kind == "switch gone"
    assert "is gone, with 8 cables" in gone.what
    (new,) = compare(cabling(made), cabling(fat_tree()))
    assert new.kind == "switch new"


def test_a_new_adapter_and_a_new_name_are_told() -> None:
    made = fat_tree()
    made.join(made.switches[0], 40, made.adapter("node0099 mlx5_0"), 1)
    made.adapters[0].name = "gpu01 mlx5_0"
    changes = compare(cabling(fat_tree()), cabling(made))
    assert sorted(change.kind for change in changes) == ["adapter new", "renamed"]
    assert [change.what.endswith("is new, with 1 cable") for change in changes].count(True) == 1


def seen(name: str, managers: set[int], switches: set[int] | None = None) -> Observation:
    return Observation(name, frozenset(managers), frozenset(switches or set()))


def test_a_fabric_is_named_by_its_lowest_manager_and_keeps_the_name_over_a_failover() -> None:
    first = settle_identities([], [seen("ib-a", {0x501, 0x401})])
    assert [fabric.id for fabric in first.known] == [A]
    failed_over = settle_identities(first.known, [seen("ib-a", {0x501})])
    assert failed_over.fabric_of_name == {"ib-a": [A]}
    lower_joined = settle_identities(failed_over.known, [seen("ib-a", {0x501, 0x101})])
    only_new = settle_identities(lower_joined.known, [seen("ib-a", {0x101})])
    assert only_new.fabric_of_name == {"ib-a": [A]}
    assert only_new.problems == []


def test_switches_keep_the_name_when_every_manager_is_new() -> None:
    known = settle_identities([], [seen("ib-a", {0x401}, {1, 2, 3, 4})]).known
    new = settle_identities(known, [seen("ib-a", {0x999}, {1, 2, 3, 9})])
    assert new.fabric_of_name == {"ib-a": [A]}


def test_silence_changes_nothing() -> None:
    known = settle_identities([], [seen("ib-a", {0x401}, {1, 2})]).known
    silent = settle_identities(known, [seen("ib-a", set())])
    assert (silent.known, silent.fabric_of_name, silent.problems) == (known, {"ib-a": []}, [])


def test_one_name_over_two_fabrics_and_two_names_over_one_are_problems() -> None:
    two = settle_identities([], [seen("ib-a", {0x401}), seen("ib-a", {0x701})])
    assert len(two.known) == 2
    assert two.problems[0].startswith("the name ib-a stands for 2 physical fabrics")
    one = settle_identities([], [seen("ib-a", {0x401, 0x501}), seen("ib-b", {0x501})])
    assert len(one.known) == 1
    assert one.problems == [f"the names ib-a and ib-b stand for one physical fabric ({A}); use one name"]


def test_a_managers_host_that_is_cabled_to_another_fabric_takes_no_name_along() -> None:
    known = settle_identities([], [seen("ib-a", {0x401}, {1, 2}), seen("ib-b", {0x501}, {5, 6})]).known
    moved = settle_identities(known, [seen("ib-a", {0x601}, {1, 2}), seen("ib-b", {0x401, 0x501}, {5, 6})])
    assert moved.fabric_of_name == {"ib-a": [A], "ib-b": ["0x0000000000000501"]}
    assert 0x401 not in next(fabric.managers for fabric in moved.known if fabric.id == A)
    assert moved.problems == []


def test_of_a_fabric_that_fell_apart_the_larger_part_keeps_the_name() -> None:
    known = settle_identities([], [seen("ib-a", {0x401, 0x501}, {1, 2, 3, 4, 5})]).known
    apart = settle_identities(known, [seen("ib-a", {0x501}, {1, 2}), seen("ib-b", {0x401}, {3, 4, 5})])
    assert apart.fabric_of_name == {"ib-a": ["0x0000000000000501"], "ib-b": [A]}


def test_two_fabrics_that_are_joined_are_one_with_the_name_of_the_larger() -> None:
    known = [
        PhysicalFabric("0x0000000000000009", frozenset({9}), frozenset({1, 2, 3})),
        PhysicalFabric("0x0000000000000007", frozenset({7}), frozenset({4, 5})),
    ]
    joined = settle_identities(known, [seen("ib-a", {7, 9}, {1, 2, 3, 4, 5})])
    assert joined.fabric_of_name == {"ib-a": ["0x0000000000000009"]}
    assert "are one now" in joined.problems[0]
