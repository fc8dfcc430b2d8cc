"""What ports report from heartbeat to heartbeat, and what placement is told of it and of the map."""

from __future__ import annotations

from typing import Any

from llmgw.fabric.names import short_name
from llmgw.fabric.report import analyse
from llmgw.fleet.model import Fleet, Node, NodeState
from llmgw.messages.agent import FabricOffer, Inventory, Port
from llmgw.server.fabrics.facts import fabric_facts, leaf_distances
from llmgw.server.fabrics.known import FabricMap
from llmgw.server.fabrics.port_watch import PENDING_MAX, PortWatch
from tests.fabric.generate import Fabric, fat_tree
from tests.server.fabric_world import M1, Watched, managers, ports_of


def inventory(**changes: Any) -> Inventory:
    port: dict[str, Any] = {"adapter": "mlx5_0", "port": 1, "state": "ACTIVE", "rate_gbps": 400.0, "sm_lid": 1}
    offers = [FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True)]
    return Inventory(ports=[Port(**{**port, **changes})], fabrics=offers)


def whats(watch: PortWatch) -> list[str]:
    return [change.what for _, change in watch.drain()]


def test_every_change_of_state_master_and_rate_is_told_once() -> None:
    watch = PortWatch()
    watch.take("n1", inventory(), 0.0)
    assert whats(watch) == []
    watch.take("n1", inventory(state="DOWN", phys_state="Polling", rate_gbps=None), 1.0)
    assert whats(watch) == ["n1 mlx5_0:1 is DOWN (Polling), and was ACTIVE"]
    watch.take("n1", inventory(rate_gbps=200.0, sm_lid=7), 2.0)
    assert whats(watch) == [
        "n1 mlx5_0:1 is ACTIVE, and was DOWN",
        "n1 mlx5_0:1 reports LID 7 as its master, and reported LID 1 as its master",
        "n1 mlx5_0:1 runs at 200 Gb/s, and ran at 400 Gb/s",
    ]
    watch.take("n1", inventory(rate_gbps=200.0, sm_lid=7), 3.0)
    watch.take("n1", Inventory(), 4.0)
    watch.take("n1", Inventory(), 5.0)
    watch.take("n1", inventory(rate_gbps=200.0, sm_lid=7), 6.0)
    assert whats(watch) == ["n1 mlx5_0:1 is gone", "n1 mlx5_0:1 is back"]
    assert watch.name_of("n1", "mlx5_0", 1) == "ib-a"


def test_error_counters_that_move_count_for_an_hour_and_a_cleared_one_does_not() -> None:
    watch = PortWatch()
    watch.take("n1", inventory(counters={"symbol_error": 5, "link_downed": None, "port_xmit_data": 1}), 0.0)
    watch.take("n1", inventory(counters={"symbol_error": 5, "link_downed": 3, "port_xmit_data": 9}), 1.0)
    assert watch.errors("n1", "mlx5_0", 1, 1.0) == []
    watch.take("n1", inventory(counters={"symbol_error": 0, "link_downed": 4}), 2.0)
    assert watch.errors("n1", "mlx5_0", 1, 2.0) == ["link_downed"]
    version = watch.version
    watch.take("n1", inventory(counters={"symbol_error": 1, "link_downed": 5}), 3.0)
    watch.take("n1", inventory(counters={"symbol_error": 2, "link_downed": 6}), 4.0)
    assert watch.version == version + 1, "the same doubt again is no news"
    assert watch.errors("n1", "mlx5_0", 1, 3700.0) == []


def test_what_waits_is_bounded_and_nodes_are_forgotten() -> None:
    watch = PortWatch()
    for number in range(PENDING_MAX + 10):
        watch.take("n1", inventory(sm_lid=number), float(number))
    assert len(watch.drain()) == PENDING_MAX
    watch.forget("n1")
    assert watch.name_of("n1", "mlx5_0", 1) is None


def placed(made: Fabric, watch: PortWatch | None = None) -> tuple[Watched, Fleet]:
    """A fleet whose nodes are the generated map's, on a book that knows it by GUID."""
    it = Watched(ports_of(made))
    it.say(managers(M1))
    it.map(made.text())
    fleet = Fleet()
    for one in it.ports:
        node = fleet.nodes.setdefault(one.at.node, Node(one.at.node, NodeState.READY, session="s"))
        offers = [FabricOffer(name="ib-a", adapters=["mlx5_0:1", "mlx5_1:1"], usable=True)]
        node.inventory = Inventory(ports=[*node.inventory.ports, one.port], fabrics=offers)
    inventories = {node.node_id: node.inventory.ports for node in fleet.nodes.values()}
    orders = {node: ["mlx5_0", "mlx5_1"] for node in fleet.nodes}
    fabric = it.only()
    fabric.map = FabricMap(it.now, "n1", analyse(made.text(), (), inventories, orders))
    return it, fleet


def test_placement_is_told_leaves_rails_distances_and_doubts() -> None:
    made = fat_tree(nodes=8, rails=2, leaves=4, spines=2, swap=1)
    adapter = made.adapters[0]
    made.rerate(adapter, 1, "4xHDR")
    it, fleet = placed(made)
    watch = PortWatch()
    ports = [Port(adapter="mlx5_1", port=1, counters={"symbol_error": count}) for count in (0, 9)]
    for at, port in enumerate(ports):
        watch.take("n3", Inventory(ports=[port]), it.now + at)

    facts = fabric_facts(fleet, it.book, watch, it.now, {("n4", "ib-a"): "its last test was bad"})
    leaves = [switch.id for switch in made.switches[:4]]
    first = facts.places["n1", "ib-a"]
    assert (first.physical, first.leaves, first.aligned) == (it.only().id, tuple(leaves[:2]), True)
    assert first.doubts == ("the cable of mlx5_0 runs at 4xHDR, not 4xNDR",)
    swapped = facts.places["n2", "ib-a"]
    assert (swapped.leaves, swapped.aligned) == ((leaves[1], leaves[0]), False)
    assert swapped.doubts == ("mlx5_0 and mlx5_1 are each on the other's leaf",)
    assert facts.places["n3", "ib-a"].doubts == ("mlx5_1:1 counted errors in the last hour (symbol_error)",)
    assert facts.places["n4", "ib-a"].doubts == ("its last test was bad",)
    assert facts.places["n8", "ib-a"].leaves == tuple(leaves[2:])
    assert facts.distances[leaves[0], leaves[3]] == 1
    assert facts.leaf_names[leaves[0]] == short_name(made.switches[0].name)


def test_leaves_of_two_pods_are_two_tiers_apart_and_what_is_not_joined_has_no_distance() -> None:
    made = fat_tree(nodes=8, rails=2, leaves=4, spines=2, pods=2, cores=1)
    leaves = [switch.id for switch in made.switches[:4]]
    distances = leaf_distances(analyse(made.text()), leaves)
    assert distances[leaves[0], leaves[1]] == 1
    assert distances[leaves[0], leaves[2]] == 2
    apart = fat_tree(nodes=8, rails=2, leaves=4, spines=2, pods=2)
    assert (leaves[0], leaves[2]) not in leaf_distances(analyse(apart.text()), leaves)


def test_of_a_node_with_an_adapter_that_is_not_on_the_map_the_leaves_of_the_others_are_told() -> None:
    made = fat_tree(nodes=2, rails=2, leaves=2, spines=1)
    it, fleet = placed(made)
    node = fleet.nodes["n2"]
    offer = node.inventory.fabrics[0]
    more = FabricOffer(name=offer.name, usable=True, adapters=[*offer.adapters, "mlx5_9:1"])
    node.inventory = Inventory(ports=node.inventory.ports, fabrics=[more])
    place = fabric_facts(fleet, it.book, PortWatch(), it.now).places["n2", "ib-a"]
    assert place.leaves == (*(switch.id for switch in made.switches[:2]), "")
    assert place.aligned is None


def test_a_node_that_is_not_on_the_map_has_no_leaves_and_keeps_its_fabric() -> None:
    made = fat_tree(nodes=2, rails=2, leaves=2, spines=1)
    it, fleet = placed(made)
    node = fleet.nodes["n2"]
    unknown = [
        Port(adapter=port.adapter, port=1, link_layer="InfiniBand", sm_lid=1) for port in node.inventory.ports
    ]
    node.inventory = Inventory(ports=unknown, fabrics=node.inventory.fabrics)
    it.ports = it.ports[:2]
    place = fabric_facts(fleet, it.book, PortWatch(), it.now).places["n2", "ib-a"]
    assert (place.leaves, place.aligned) == ((), None)
