"""Every shard is in exactly one set, under the name that says what is known of it."""

from __future__ import annotations

from llmgw.fleet.model import NodeState, ReplicaState
from llmgw.fleet.sets import Sets, ShardSet
from llmgw.messages.agent import LIVE_PHASES
from tests.fleet.test_reconcile import catalog, four_nodes
from tests.fleet.world import World


def full_world() -> World:
    world = World(catalog(), four_nodes())
    world.run(20)
    return world


def names(world: World) -> dict[str, ShardSet]:
    """Shard id → the set it is in; a shard in two sets is an error."""
    found: dict[str, ShardSet] = {}
    for name, shards in Sets.of(world.fleet, world.catalog).shards.items():
        for _, shard_id in shards:
            assert shard_id not in found, f"{shard_id} is in two sets"
            found[shard_id] = name
    return found


def count(world: World, name: ShardSet) -> int:
    return sum(1 for found in names(world).values() if found is name)


def test_a_healthy_fleet_serves_and_nothing_else() -> None:
    assert set(names(full_world()).values()) == {ShardSet.SERVING}


def test_shards_whose_start_was_just_sent_are_starting() -> None:
    world = World(catalog(), four_nodes())
    world.run(2)
    assert set(names(world).values()) == {ShardSet.STARTING}


def test_shards_of_a_silent_node_that_works_are_behind_an_unreachable_node() -> None:
    world = full_world()
    world.machines["node02"].connected = False
    world.run(30)
    held = set(world.machines["node02"].held)
    assert held
    assert {found for shard_id, found in names(world).items() if shard_id in held} == {
        ShardSet.BEHIND_UNREACHABLE_NODE
    }


def test_shards_of_a_lost_node_are_on_a_lost_node_and_reconnect_when_it_returns() -> None:
    world = full_world()
    held = set(world.machines["node02"].held)
    world.machines["node02"].connected = False
    world.run(400)
    assert world.fleet.nodes["node02"].state is NodeState.LOST
    sorted_now = names(world)
    assert {sorted_now[shard_id] for shard_id in held} == {ShardSet.ON_LOST_NODE}
    world.machines["node02"].connected = True
    world.speak(world.machines["node02"])
    sorted_now = names(world)
    assert ShardSet.RECONNECTING in {sorted_now[shard_id] for shard_id in held}


def test_a_shard_that_a_registration_does_not_name_is_missing() -> None:
    world = full_world()
    machine = next(m for m in world.machines.values() if m.held)
    gone = set(machine.held)
    machine.held.clear()
    machine.session = None
    world.speak(machine)
    sorted_now = names(world)
    assert {sorted_now[shard_id] for shard_id in gone} == {ShardSet.MISSING}


def test_a_shard_that_nobody_here_owns_is_unrecognised() -> None:
    world = full_world()
    machine = next(m for m in world.machines.values() if m.held)
    shard_id = min(machine.held)
    replica_id = machine.held[shard_id].spec.replica_id
    del world.fleet.replicas[replica_id]
    world.speak(machine)
    assert names(world)[shard_id] is ShardSet.UNRECOGNISED


def test_what_a_starting_server_is_told_of_is_adopted_first() -> None:
    world = full_world()
    running = {s for m in world.machines.values() for s, held in m.held.items() if held.phase in LIVE_PHASES}
    world.start_server()
    for machine in world.machines.values():
        world.speak(machine)
    assert dict.fromkeys(running, ShardSet.ADOPTED) == names(world)


def test_surplus_replicas_are_named_with_the_reason_newest_first() -> None:
    world = full_world()
    world.catalog = catalog(small=1)
    surplus = Sets.of(world.fleet, world.catalog).surplus
    newest = max(
        (r for r in world.fleet.replicas.values() if r.model == "small"),
        key=lambda r: (r.created_at, r.replica_id),
    )
    assert [why for _, why in surplus] == ["1 wanted, 2 there"]
    assert surplus[0][0].created_at == newest.created_at


def test_a_profile_with_too_few_replicas_is_short_largest_gangs_first() -> None:
    world = World(catalog(), four_nodes())
    short = Sets.of(world.fleet, world.catalog).short
    assert [(model, lacking) for model, _, lacking in short] == [("big", 2), ("small", 2)]


def test_a_draining_replica_s_shards_are_draining_until_it_is_stopped() -> None:
    world = full_world()
    replica = next(iter(world.fleet.replicas.values()))
    replica.state = ReplicaState.DRAINING
    sorted_now = names(world)
    assert {sorted_now[shard.shard_id] for shard in replica.shards.values()} == {ShardSet.DRAINING}
