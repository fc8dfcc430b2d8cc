"""A fabric port down under a replica of several nodes: noticed at once, out after 10 s, failed after 30."""

from __future__ import annotations

import msgspec
import pytest

from llmgw.fleet.events import Event
from llmgw.fleet.model import NodeState, Replica, ReplicaState
from llmgw.fleet.observe import forgive_pause, heard
from llmgw.fleet.outages import why_down
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import FabricOffer, Inventory, Port
from tests.fleet.test_reconcile import catalog, four_nodes
from tests.fleet.world import Machine, World


@pytest.fixture
def world() -> World:
    """One gang on ib-a; ib-b has room for another."""
    world = World(catalog(big=1, small=2), four_nodes())
    world.run(20)
    assert gang(world).fabric == "ib-a"
    return world


def gang(world: World) -> Replica:
    (replica_id,) = world.replicas("big", ReplicaState.READY)
    return world.fleet.replicas[replica_id]


def told(world: World, subject: str) -> list[str]:
    return [event.event for event in world.events if event.subject == subject]


def last(world: World, event: str) -> Event:
    return [each for each in world.events if each.event == event][-1]


def test_a_port_down_is_noticed_at_once_and_named_and_traffic_goes_on_for_ten_seconds(world: World) -> None:
    replica = gang(world)
    world.machines["node02"].down.add("ib-a")
    world.run(1)
    assert replica.outage is not None
    assert replica.outage.nodes == ("node02",)
    assert "node02: mlx5_0 port 1 is not up" in last(world, "fabric down").reason
    world.run(8)
    assert world.serving("big") == [replica.replica_id]


def test_it_leaves_the_rotation_after_ten_seconds_and_comes_back_with_the_port(world: World) -> None:
    replica = gang(world)
    world.machines["node02"].down.add("ib-a")
    world.run(11)
    assert world.serving("big") == []
    assert replica.state is ReplicaState.READY
    world.run(15)
    world.machines["node02"].down.clear()
    world.run(1)
    assert world.serving("big") == [replica.replica_id]
    assert told(world, replica.replica_id)[-3:] == ["fabric down", "cut off", "fabric up"]
    world.run(60)
    assert world.serving("big") == [replica.replica_id]


def test_it_is_failed_after_thirty_seconds_and_replaced_where_the_fabric_works(world: World) -> None:
    replica = gang(world)
    world.machines["node02"].down.add("ib-a")
    world.run(30)
    assert replica.state is ReplicaState.READY
    world.run(2)
    assert replica.state is ReplicaState.FAILED
    assert "has been down under it for 30 s" in last(world, "failed").reason
    world.run(20)
    assert gang(world).fabric == "ib-b"
    assert not world.fleet.backoff, "it was not the profile's fault"


def test_a_sign_of_progress_does_not_bring_it_back_and_a_fabric_does_not_end_a_stall(world: World) -> None:
    replica = gang(world)
    world.machines["node02"].down.add("ib-a")
    world.run(12)  # its leader answers all the time
    assert world.serving("big") == []
    replica.suspended, replica.suspended_at = "no progress", world.now + 1000
    world.machines["node02"].down.clear()
    world.run(2)
    assert replica.outage is None
    assert world.serving("big") == []
    assert replica.out_of_rotation == "no progress"


def test_replicas_of_one_node_do_not_care(world: World) -> None:
    before = world.serving("small")
    for machine in world.machines.values():
        machine.down = {"ib-a", "ib-b"}
    world.run(60)
    assert world.serving("small") == before


def test_a_node_that_is_silent_is_not_believed_until_it_says_so_again(world: World) -> None:
    replica = gang(world)
    node = world.fleet.nodes["node02"]
    world.machines["node02"].down.add("ib-a")
    world.run(5)
    world.machines["node02"].connected = False
    world.run(100)
    assert node.state is NodeState.UNREACHABLE
    assert replica.state is ReplicaState.READY
    # A poll is heard before a report: what it had said of its ports is old.
    world.events += heard(world.fleet, "node02", world.now)
    world.turn()
    assert replica.state is ReplicaState.READY
    world.machines["node02"].down.clear()
    world.machines["node02"].connected = True
    world.run(1)
    assert replica.outage is None
    assert world.serving("big") == [replica.replica_id]


def test_an_agent_that_says_nothing_new_costs_no_replica_its_life(world: World) -> None:
    replica = gang(world)
    world.machines["node02"].down.add("ib-a")
    world.run(2)
    world.machines["node02"].connected = False
    for _ in range(60):  # it polls, and its reports hang
        world.events += heard(world.fleet, "node02", world.now)
        world.run(1)
    assert replica.state is ReplicaState.READY
    assert world.serving("big") == []
    world.machines["node02"].connected = True
    world.run(2)
    assert replica.state is not ReplicaState.READY


def test_a_pause_of_the_server_moves_the_deadlines(world: World) -> None:
    replica = gang(world)
    world.machines["node02"].down.add("ib-a")
    world.run(5)
    world.now += 100
    forgive_pause(world.fleet, 100, world.now)
    world.run(3)
    assert world.serving("big") == [replica.replica_id]
    world.run(20)
    assert world.serving("big") == []
    assert replica.state is ReplicaState.READY
    world.run(5)
    assert replica.state is not ReplicaState.READY


def test_when_a_leaf_dies_no_more_are_given_up_than_health_may_cost_in_a_minute() -> None:
    machines = [Machine(f"node{i:02d}", ["ib-a"]) for i in range(12)]
    world = World(catalog(big=6, small=0), machines)
    world.run(30)
    assert len(world.serving("big")) == 6
    for machine in machines:
        machine.down.add("ib-a")
    world.run(12)
    assert world.serving("big") == []
    world.run(28)
    assert len(world.replicas("big", ReplicaState.READY)) == 4
    world.run(60)
    assert len(world.replicas("big", ReplicaState.READY)) == 2
    for machine in machines:
        machine.down.clear()
    world.run(60)
    assert len(world.serving("big")) == 6


def test_a_replica_that_starts_on_a_fabric_that_goes_down_is_started_elsewhere() -> None:
    world = World(catalog(big=1, small=0), four_nodes(), FleetSettings(settle_s=2.0))
    world.machines["node02"].connected = True
    world.run(4)
    (replica_id,) = world.replicas("big")
    replica = world.fleet.replicas[replica_id]
    replica.state = ReplicaState.STARTING
    for machine in world.machines.values():  # it never gets ready: a rank waits for the other
        machine.held = {
            name: msgspec.structs.replace(held, phase="starting", version=held.version + 1)
            for name, held in machine.held.items()
        }
    leading = replica.node_ids[0]
    world._joined = lambda spec: spec.replica_id != replica_id  # type: ignore[method-assign]
    world.machines[leading].down.add(replica.fabric or "")
    world.run(33)
    assert replica.state is ReplicaState.FAILED
    assert not world.fleet.evictions, "it served nobody"
    world.run(10)
    assert gang(world).fabric != replica.fabric


def test_a_server_that_starts_during_an_outage_takes_the_replica_over_and_gives_it_up_in_time(
    world: World,
) -> None:
    old = gang(world).replica_id
    world.machines["node02"].down.add("ib-a")
    world.run(2)
    world.start_server()
    world.run(4)
    assert gang(world).replica_id == old
    world.run(8)
    assert world.serving("big") == []
    world.run(40)
    assert gang(world).replica_id != old


def replica_with(ports: dict[str, list[str]]) -> Replica:
    return Replica("big-1", "big", "p", "h", 2, "sim", ReplicaState.READY, 0.0, 0.0, fabric="ib-a", ports=ports)


def said(world: World, offer: FabricOffer | None, *ports: Port) -> str | None:
    node = world.fleet.nodes["node01"]
    node.inventory = Inventory(fabrics=[offer] if offer is not None else [], ports=list(ports))
    return why_down(node, replica_with({"node01": ["mlx5_0:1", "mlx5_0:2"]}))


def test_only_ports_that_were_in_use_count(world: World) -> None:
    up = [Port(adapter="mlx5_0", port=1, state="ACTIVE"), Port(adapter="mlx5_0", port=2, state="ACTIVE")]
    half = [up[0], Port(adapter="mlx5_0", port=2, state="DOWN")]
    both = FabricOffer(name="ib-a", adapters=["mlx5_0:1", "mlx5_0:2"], usable=True)
    assert said(world, both) is None
    # One port of an adapter with two is enough for new replicas, and not for one that uses both.
    one = FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True)
    assert said(world, one, *half) == ("node01: mlx5_0:2 is not up any more: check the cable and its other end")
    # A mistake in agent.yaml ends nothing that works.
    refused = FabricOffer(name="ib-a", reason="mlx5_0 is under two fabrics")
    assert said(world, refused, *up) is None
    assert said(world, None, *up) is None
    assert said(world, refused, *half) == "node01: mlx5_0 is under two fabrics"
    assert said(world, None) == "node01 does not declare ib-a any more"


def test_without_known_ports_the_offer_counts(world: World) -> None:
    node = world.fleet.nodes["node01"]
    node.inventory = Inventory(fabrics=[FabricOffer(name="ib-a", reason="mlx5_0 is not there")])
    assert why_down(node, replica_with({})) == "node01: mlx5_0 is not there"
    node.inventory = Inventory(fabrics=[FabricOffer(name="ib-a", usable=True)])
    assert why_down(node, replica_with({})) is None
