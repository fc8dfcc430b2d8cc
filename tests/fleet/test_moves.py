"""What is said of replicas that must be replaced: who waits for what, and who cannot be moved."""

from __future__ import annotations

from llmgw.fleet.moves import Move, moves
from tests.fleet.test_distrust import Breaking
from tests.fleet.test_reconcile import catalog, four_nodes
from tests.fleet.world import World


def said(world: World) -> dict[str, Move]:
    return moves(world.fleet, world.catalog, world.now)


def test_of_healthy_replicas_that_stay_nothing_is_said() -> None:
    world = World(catalog(), four_nodes())
    world.run(20)
    assert said(world) == {}


def test_a_roll_that_finds_no_room_names_each_replica_with_placements_reason() -> None:
    world = World(catalog(big=4, small=0), four_nodes())
    world.run(20)
    world.catalog = catalog(big=4, small=0, args=["--new"])
    world.run(5)
    assert sorted(said(world)) == sorted(world.serving("big"))
    for move in said(world).values():
        assert move.stuck
        assert move.reason == "its profile has changed"
        assert "left serving, since nothing else can take it: needs 2 nodes with 4 free GPUs" in move.waits


def test_what_is_under_way_is_not_stuck_and_the_next_of_the_model_waits_for_its_turn() -> None:
    world = World(catalog(big=0), four_nodes())
    world.run(20)
    for node in world.fleet.nodes.values():
        node.draining = any(node.node_id in world.fleet.replicas[r].node_ids for r in world.serving("small"))
    world.turn()
    (new,) = (r for r in world.fleet.replicas.values() if r.replaces is not None)
    found = said(world)
    assert found[str(new.replaces)].waits == f"it waits until its replacement {new.replica_id} is ready"
    (other,) = (move for replica_id, move in found.items() if replica_id != new.replaces)
    assert "waits for its turn" in other.waits
    assert not any(move.stuck for move in found.values())


def test_a_replacement_that_fails_is_named_with_its_last_words_and_when_it_is_tried_again() -> None:
    world = Breaking(catalog(big=0, small=2), four_nodes())
    world.run(20)
    world.catalog = catalog(big=0, small=2, args=["--broken"], max_failures=9)
    world.run(5)
    found = said(world)
    assert sorted(found) == sorted(world.serving("small"))
    for move in found.values():
        assert move.stuck
        assert "tried again in" in move.waits
        assert "after 1 failure, the last (small-3): " in move.waits
        assert "engine exited with code 1" in move.waits


def test_of_a_gang_the_rank_that_is_heard_of_later_is_part_of_the_reason() -> None:
    world = World(catalog(big=1, small=0), four_nodes())
    world.run(20)
    (replica_id,) = world.serving("big")
    leader, worker = (world.machines[node] for node in world.fleet.replicas[replica_id].node_ids)
    # The worker notices first that its leader is gone; why that went is reported after the replica has failed.
    world.change(worker, f"{replica_id}.1", "failed", "the leader is gone")
    world.speak(worker)
    world.turn()
    world.change(leader, f"{replica_id}.0", "failed", "CUDA out of memory")
    leader.inbox.clear()
    world.speak(leader)
    reason = world.fleet.backoff["big", "default"].reason
    assert reason == (
        f"rank 1 on {worker.node_id}: the leader is gone; rank 0 on {leader.node_id}: CUDA out of memory"
    )
