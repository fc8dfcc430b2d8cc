"""Placement where a test of the fabric is required: replicas of several nodes wait for it, others do not."""

from __future__ import annotations

from llmgw.config.catalog import Catalog
from llmgw.fleet.fabric_test_gate import FabricTestGate
from llmgw.fleet.model import Fleet
from llmgw.fleet.placement import Verdict, choose_seats, never, place
from llmgw.fleet.room import Room, Wanted
from tests.fleet.world import Machine, World

DAY = 86400.0
REASON = "has not passed a test of the fabric lately enough"


def fleet_of(fabrics: dict[str, list[str]], gate: FabricTestGate | None) -> Fleet:
    world = World(Catalog(), [Machine(name, names) for name, names in fabrics.items()])
    world.run(10.0)
    world.fleet.fabric_test_gate = gate
    return world.fleet


def wanted(nodes: int = 2, fabric: str | None = None) -> Wanted:
    model = {"name": "m", "profiles": [{"engine": "sim", "nodes": nodes, "fabric": fabric}]}
    return Wanted("m", Catalog.model_validate({"models": [model]}).models[0].profiles[0])


def verdict(fleet: Fleet, of: Wanted) -> Verdict:
    found = place(fleet, of, Room.of(fleet))
    chosen = choose_seats(fleet, of, Room.of(fleet))
    assert (chosen.seats if chosen is not None else None) == found.seats
    return found


FOUR = {"n1": ["ib-a"], "n2": ["ib-a"], "n3": ["ib-a"], "n4": ["ib-a"]}


def test_only_nodes_that_passed_lately_host_replicas_of_several_nodes() -> None:
    ages = {("n2", "ib-a"): 8 * DAY, ("n3", "ib-a"): 3 * DAY, ("n4", "ib-a"): 0.0, ("n1", "ib-b"): 0.0}
    found = verdict(fleet_of(FOUR, FabricTestGate(7 * DAY, ages)), wanted())
    assert found.seats is not None
    assert {seat.node_id for seat in found.seats} == {"n3", "n4"}
    assert found.refused == {REASON: ["n1", "n2"]}
    assert found.details == {
        "n1": "ib-a: never passed a test; llmgw ctl fabric-test n1 OTHER_NODE",
        "n2": "ib-a: last passed a test 8 d ago; llmgw ctl fabric-test n2 OTHER_NODE",
    }


def test_without_the_gate_and_for_one_node_nothing_is_asked() -> None:
    assert verdict(fleet_of(FOUR, None), wanted()).refused == {}
    assert verdict(fleet_of(FOUR, FabricTestGate(DAY)), wanted(nodes=1)).refused == {}


def test_the_fabric_that_was_tested_is_the_one_that_is_used() -> None:
    both = {"n1": ["ib-a", "ib-b"], "n2": ["ib-a", "ib-b"]}
    ages = {(node, "ib-b"): 60.0 for node in both} | {("n1", "ib-a"): 60.0}
    fleet = fleet_of(both, FabricTestGate(DAY, ages))
    assert verdict(fleet, wanted()).fabric == "ib-b"
    named = verdict(fleet, wanted(fabric="ib-a"))
    assert named.seats is None
    assert named.refused == {REASON: ["n2"]}
    assert "has not passed a test" in named.reason


def test_a_test_that_is_wanting_is_no_reason_for_never() -> None:
    assert never(fleet_of(FOUR, FabricTestGate(DAY)), wanted()) is None
