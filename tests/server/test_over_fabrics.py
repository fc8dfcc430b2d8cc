"""What the control plane tells of replicas that span nodes: a fabric down under them, how they sit, and why."""

from __future__ import annotations

import msgspec

from llmgw.fleet.fabric_facts import FabricFacts, Place
from llmgw.fleet.model import Replica, ReplicaState
from llmgw.messages.agent import FabricOffer
from tests.fleet.test_reconcile import catalog
from tests.fleet.world import Machine, World
from tests.server.test_catalog_owner import Plane
from tests.server.test_troubles import WithPlane, problems


def with_a_gang(plane: Plane) -> Replica:
    """Three nodes on one fabric, one replica on two of them."""
    wanted = catalog(big=1, small=0)
    world = World(wanted, [Machine(f"n{i}", ["ib-a"]) for i in (1, 2, 3)])
    world.run(10)
    plane.hub.fleet, plane.hub.catalog = world.fleet, wanted
    for node in world.fleet.nodes.values():
        node.last_heard = plane.hub.clock.monotonic()
    (replica,) = world.fleet.replicas.values()
    assert (replica.node_ids, replica.state) == (["n1", "n2"], ReplicaState.READY)
    return replica


def test_a_port_down_under_a_replica_is_a_problem_at_once_and_says_what_follows(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        replica = with_a_gang(plane)
        assert "replica-fabric-down" not in await problems(plane)
        node = plane.hub.fleet.nodes["n2"]
        offer = FabricOffer(name="ib-a", reason="mlx5_0 port 1 is not up (DOWN)")
        node.inventory = msgspec.structs.replace(node.inventory, fabrics=[offer])
        plane.hub.turn()
        found = (await problems(plane))["replica-fabric-down"]
        assert (found["severity"], found["where"]) == ("error", replica.replica_id)
        assert "ib-a is down under it: n2: mlx5_0 port 1 is not up (DOWN)" in found["what"]
        assert "leaves the rotation soon" in found["why"]
        assert "llmgw ctl nodes n2" in found["remedy"]
        (view,) = await plane.get("replicas")
        assert view["reason"] == "ib-a is down under it: n2: mlx5_0 port 1 is not up (DOWN)"

    with_plane(body)


def test_a_replica_that_turns_out_to_span_two_physical_fabrics_is_a_problem(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        replica = with_a_gang(plane)
        plane.hub.set_fabric_facts(FabricFacts({("n1", "ib-a"): Place("f1"), ("n2", "ib-a"): Place("f1")}))
        assert "replica-spans-fabrics" not in await problems(plane)
        plane.hub.set_fabric_facts(FabricFacts({("n1", "ib-a"): Place("f1"), ("n2", "ib-a"): Place("f2")}))
        found = (await problems(plane))["replica-spans-fabrics"]
        assert found["where"] == replica.replica_id
        assert "2 physical fabrics that are all called ib-a: f1, f2" in found["what"]

    with_plane(body)


def test_explain_says_how_replicas_sit_where_the_next_would_go_and_who_comes_last(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        replica = with_a_gang(plane)
        places = {
            ("n1", "ib-a"): Place("f1", ("l1",)),
            ("n2", "ib-a"): Place("f1", ("l2",), doubts=("cable leaf02 port 3 runs at 4xDDR",)),
            ("n3", "ib-a"): Place("f1", ("l1",)),
        }
        names = {"l1": "leaf01", "l2": "leaf02"}
        plane.hub.set_fabric_facts(FabricFacts(places, {("l1", "l2"): 1}, names))
        (profile,) = (await plane.get("explain?model=big"))["profiles"]
        assert profile["sits"] == {replica.replica_id: "2 leaves (leaf01, leaf02), 1 tier crossed"}
        assert profile["decided"][0] == "n3 and n1 on ib-a: one leaf (leaf01)"
        assert profile["last"] == {"n2": "comes last: cable leaf02 port 3 runs at 4xDDR"}

    with_plane(body)


def test_without_facts_explain_says_that_nobody_knows(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        with_a_gang(plane)
        (profile,) = (await plane.get("explain?model=big"))["profiles"]
        assert profile["sits"] == {}
        assert profile["decided"] == ["n3 and n1 on ib-a: nobody knows at which leaves"]

    with_plane(body)
