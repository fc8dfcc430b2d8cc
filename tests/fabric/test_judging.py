"""Tiers, slow cables, rails and names, on fabrics that are made for it."""

from __future__ import annotations

import pytest

from llmgw.fabric.ibnetdiscover import read_ibnetdiscover
from llmgw.fabric.names import find_owners, manager_hosts
from llmgw.fabric.rails import find_rails
from llmgw.fabric.report import FabricReport, analyse, report_fabric
from llmgw.fabric.tiers import find_tiers
from llmgw.fabric.topology import build_topology
from llmgw.messages.agent import Port
from tests.fabric.generate import ADAPTER_DEVICE, Fabric, fat_tree, ring


def report_of(made: Fabric) -> FabricReport:
    report = report_fabric(analyse(made.text()))
    assert report.unread_lines == 0
    return report


def tiers_of(made: Fabric) -> tuple[int, ...]:
    return tuple(report_of(made).tiers.values())


def test_a_fat_tree_has_leaves_spines_and_cores() -> None:
    assert tiers_of(fat_tree()) == (4, 2, 0)
    assert tiers_of(fat_tree(nodes=32, leaves=8, spines=4, cores=2)) == (8, 4, 2)


@pytest.mark.parametrize("switches", [3, 4, 6])
@pytest.mark.parametrize("bare", [0, 1, 2])
def test_a_ring_has_no_spine(switches: int, bare: int) -> None:
    # Where no leaf is joined to another the ring is two leaves and two spines, as good as a tree.
    if (switches, bare) != (3, 2):
        assert tiers_of(ring(switches=switches, bare=bare)) == (switches, 0, 0)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("spines", [1, 2, 4])
def test_a_test_host_on_a_spine_or_on_all_of_them_makes_no_leaf(hosts: int, spines: int) -> None:
    for places in (1, spines):
        made = fat_tree(nodes=16, spines=spines)
        for spine in range(places):
            for at in range(hosts):
                made.join(made.switches[4 + spine], 60 + at, made.adapter(f"test{spine}{at} mlx5_0"), 1)
        assert tiers_of(made) == (4, spines, 0)


def test_a_test_host_on_a_core_moves_no_tier() -> None:
    made = fat_tree(nodes=64, leaves=8, spines=4, cores=2, pods=2)
    made.join(made.switches[12], 60, made.adapter("test mlx5_0"), 1)
    assert tiers_of(made) == (8, 4, 2)


def test_a_small_leaf_is_a_leaf() -> None:
    made = fat_tree(nodes=64, rails=1, leaves=4, spines=2)
    small = made.switch("leaf-5")
    made.join(small, 1, made.adapter("node9999 mlx5_0"), 1)
    for at, spine in enumerate(made.switches[4:6]):
        made.join(small, 10 + at, spine, 60)
    assert tiers_of(made) == (5, 2, 0)


def test_routers_sharp_nodes_and_hosts_of_managers_make_no_leaf() -> None:
    made = fat_tree(sharp=True)
    router = made.adapter("router001 mlx5_0")
    made.join(made.switches[4], 60, router, 1)
    text = made.text().replace(f"H-{router.guid:016x}", f"R-{router.guid:016x}")
    report = report_fabric(
        analyse(text.replace(f'Ca\t1 "R-{router.guid:016x}"', f'Rt\t1 "R-{router.guid:016x}"'))
    )
    assert (report.routers, report.sharp, report.tiers["leaf"]) == (1, 6, 4)
    for name, guids in (("mgmt mlx5_0", True), ("ufm-host mlx5_0", False)):
        made = fat_tree(nodes=2)
        host = made.adapter(name)
        made.join(made.switches[4], 60, host, 1)
        topology = build_topology(read_ibnetdiscover(made.text()))
        hosts = manager_hosts(topology, [host.guid] if guids else [])
        assert hosts == {f"H-{host.guid:016x}"}
        assert list(find_tiers(topology, hosts).values()).count("leaf") == 4


@pytest.mark.parametrize(("speed", "lower"), [("XDR", "NDR"), ("NDR", "HDR"), ("HDR", "EDR"), ("EDR", "FDR")])
def test_a_cable_below_the_speed_of_both_ends_is_slow(speed: str, lower: str) -> None:
    made = fat_tree(speed=speed, degraded=1)
    made.rerate(made.adapters[3], 1, f"4x{lower}")
    slow = report_of(made).slow
    assert [(cable.rate, cable.expected, cable.fault, cable.judged_by) for cable in slow] == [
        (f"4x{lower}", f"4x{speed}", "speed", "kinds")
    ] * 2
    assert {made.adapters[3].name, "MF0;spine-1:MQM9700/U1"} <= {
        end.name for cable in slow for end in (cable.a, cable.b)
    }


def test_an_older_card_on_a_newer_switch_is_not_slow() -> None:
    made = fat_tree()
    made.adapters[0].device = ADAPTER_DEVICE["HDR"]
    made.rerate(made.adapters[0], 1, "4xHDR")
    assert report_of(made).slow == []
    made.rerate(made.adapters[0], 1, "4xEDR")
    assert [(cable.rate, cable.expected) for cable in report_of(made).slow] == [("4xEDR", "4xHDR")]


def test_half_the_lanes_are_the_full_rate_of_a_split_port_only() -> None:
    split = fat_tree(split=True)
    assert report_of(split).slow == []
    split.rerate(split.adapters[0], 1, "1xNDR")
    assert [(cable.rate, cable.expected, cable.fault) for cable in report_of(split).slow] == [
        ("1xNDR", "2xNDR", "width")
    ]
    whole = fat_tree()
    whole.rerate(whole.adapters[0], 1, "2xNDR")
    assert [(cable.rate, cable.expected) for cable in report_of(whole).slow] == [("2xNDR", "4xNDR")]


def test_cards_that_are_all_sold_with_half_the_lanes_are_not_slow() -> None:
    made = fat_tree()
    for adapter in made.adapters:
        made.rerate(adapter, 1, "2xNDR")
    assert report_of(made).slow == []


def test_without_kinds_the_trunk_and_the_likes_judge() -> None:
    made = fat_tree(nodes=16, degraded=1)
    for switch in made.switches:
        switch.device, switch.name = 0xC738, "SwitchX -  Mellanox Technologies"
    for adapter in made.adapters:
        adapter.device = 0x1003
    made.rerate(made.adapters[0], 1, "4xDDR")
    slow = report_of(made).slow
    assert [(cable.rate, cable.expected, cable.judged_by) for cable in slow] == [
        ("4xDDR", "4xNDR", "likes"),
        ("4xHDR", "4xNDR", "trunk"),
    ]


def test_rails_are_whole_or_name_what_is_off() -> None:
    whole = report_of(fat_tree(nodes=16, leaves=8))
    assert [(rail.rail, len(rail.leaves), rail.adapters, rail.aligned) for rail in whole.rails] == [
        (rail, 2, 16, True) for rail in (1, 2, 3, 4)
    ]
    assert (whole.rail_swaps, whole.off_rail) == ([], [])
    (swap,) = report_of(fat_tree(nodes=16, leaves=8, swap=5)).rail_swaps
    assert (swap.node, swap.adapters) == ("node0006", ("mlx5_0", "mlx5_1"))


def test_a_fabric_without_rails_has_none_off_them() -> None:
    made = Fabric("NDR")
    top = made.switch("spine-1")
    for at in range(4):
        leaf = made.switch(f"leaf-{at + 1}")
        made.join(leaf, 60, top, at + 1)
        for node in range(4):
            for rail in range(2):
                made.join(leaf, 2 * node + rail + 1, made.adapter(f"node{at}{node} mlx5_{rail}"), 1)
    report = report_of(made)
    assert [rail.aligned for rail in report.rails] == [False, False]
    assert (report.rail_swaps, report.off_rail) == ([], [])


def test_guids_tell_whose_an_adapter_is_and_descriptions_only_guess() -> None:
    made = fat_tree(nodes=2, rails=2, leaves=2)
    for adapter in made.adapters[:2]:
        adapter.name = "localhost mlx5_0"
    made.adapters[2].name = "MT4129 ConnectX7   Mellanox Technologies"
    topology = build_topology(read_ibnetdiscover(made.text()))
    guid = made.adapters[0].guid
    ports = [
        Port(adapter="mlx5_7", port=1, node_guid=f"0x{guid:016x}"),
        Port(adapter="mlx5_4", port=1, port_guid=f"0x{made.adapters[2].guid:016x}"),
    ]
    owners = find_owners(topology, {"gpu01": ports})
    assert {(owner.node, owner.adapter, owner.known_by) for owner in owners.values()} == {
        ("gpu01", "mlx5_7", "guid"),
        ("gpu01", "mlx5_4", "guid"),
        ("node0002", "mlx5_1", "description"),
    }
    tiers = find_tiers(topology)
    rails = find_rails(topology, tiers, owners, {"gpu01": ["mlx5_4", "mlx5_7"]})
    assert sorted((rail.rail, rail.labels) for rail in rails.rails) == [
        (1, ["mlx5_1", "mlx5_4"]),
        (2, ["mlx5_7"]),
    ]
