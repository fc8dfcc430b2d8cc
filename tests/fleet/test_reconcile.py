"""The core decides as DESIGN.md section 4 says, over whole lives of small fleets."""

from __future__ import annotations

import msgspec
import pytest

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.model import Backoff, NodeState, ReplicaState
from llmgw.fleet.placement import place
from llmgw.fleet.room import Room, Wanted
from llmgw.messages.agent import HeldShard, ShardSpec
from tests.fleet.world import Machine, World


def catalog(*, big: int = 2, small: int = 2, **profile: object) -> Catalog:
    return Catalog(
        models=[
            CatalogModel(
                name="big", profiles=[Profile(engine="sim", nodes=2, gpus_per_node=4, replicas=big, **profile)]
            ),
            CatalogModel(
                name="small", profiles=[Profile(engine="sim", gpus_per_node=1, replicas=small, **profile)]
            ),
        ]
    )


def four_nodes() -> list[Machine]:
    return [Machine(f"node0{i}", ["ib-a" if i < 3 else "ib-b"]) for i in (1, 2, 3, 4)]


@pytest.fixture
def world() -> World:
    world = World(catalog(), four_nodes())
    world.run(20)
    assert len(world.serving("big")) == 2
    assert len(world.serving("small")) == 2
    return world


def test_an_empty_fleet_fills_up_after_settling() -> None:
    world = World(catalog(), four_nodes())
    world.run(1)
    assert not world.fleet.replicas
    world.run(19)
    fabrics = sorted(world.fleet.replicas[r].fabric or "" for r in world.replicas("big"))
    assert fabrics == ["ib-a", "ib-b"]


def test_small_replicas_leave_a_whole_fabric_free_for_gangs(world: World) -> None:
    nodes = {world.fleet.replicas[r].node_ids[0] for r in world.replicas("small")}
    assert nodes == {"node01", "node02"}


def test_a_node_whose_replica_was_given_up_with_another_node_is_not_lost_with_it(world: World) -> None:
    gang = next(r for r in world.fleet.replicas.values() if r.node_ids == ["node01", "node02"])
    for replica in world.replicas("small"):
        world.fleet.replicas[replica].restart_by = "the test"  # they move away
    world.machines["node01"].connected = False
    world.run(280)
    world.machines["node02"].connected = False
    world.run(30)
    assert world.fleet.nodes["node01"].state is NodeState.LOST
    assert gang.state is ReplicaState.FAILED
    assert world.fleet.nodes["node02"].state is NodeState.UNREACHABLE
    world.run(240)
    assert world.fleet.nodes["node02"].state is NodeState.UNREACHABLE
    world.run(60)
    assert world.fleet.nodes["node02"].state is NodeState.LOST


def test_a_lost_node_s_replica_returns_on_the_fabric_that_can_hold_it(world: World) -> None:
    world.kill("node02")
    world.run(40)
    assert world.fleet.nodes["node02"].state is NodeState.LOST
    big = [world.fleet.replicas[r] for r in world.serving("big")]
    assert len(big) == 2
    assert all(set(replica.node_ids) == {"node03", "node04"} for replica in big)
    assert len(world.serving("small")) == 2


def test_a_silent_node_whose_shards_work_is_unreachable_and_still_routed_to(world: World) -> None:
    before = world.serving("small")
    world.machines["node02"].connected = False
    world.run(60)
    assert world.fleet.nodes["node02"].state is NodeState.UNREACHABLE
    assert world.serving("small") == before
    world.machines["node02"].connected = True
    world.run(2)
    assert world.fleet.nodes["node02"].state is NodeState.READY
    assert world.serving("small") == before


def test_an_unreachable_node_is_lost_at_the_long_limit_and_its_copy_is_stopped_when_it_returns(
    world: World,
) -> None:
    world.machines["node02"].connected = False
    world.run(400)
    assert world.fleet.nodes["node02"].state is NodeState.LOST
    assert len(world.serving("small")) == 2
    world.machines["node02"].connected = True
    world.run(20)
    held = [item.spec.model for machine in world.machines.values() for item in machine.held.values()]
    assert held.count("small") == 2
    assert held.count("big") == 4


def test_a_returning_replica_resumes_when_nothing_could_replace_it() -> None:
    world = World(catalog(big=0, small=1), [Machine("node01", []), Machine("node02", [], gpus=0)])
    world.run(10)
    (replica_id,) = world.serving("small")
    world.machines["node01"].connected = False
    world.run(400)
    assert world.serving("small") == []
    world.machines["node01"].connected = True
    world.run(5)
    assert world.serving("small") == [replica_id]


class SlowForms(World):
    """A world in which new forms load until `slow` is over, and shards of nodes that are cut answer nobody."""

    slow = True

    def _joined(self, spec):  # type: ignore[no-untyped-def]
        return not (spec.args and self.slow) and super()._joined(spec)

    def works(self, replica):  # type: ignore[no-untyped-def]
        return self.machines[replica.node_ids[0]].connected and super().works(replica)


def test_the_replacement_of_a_returning_replica_that_was_on_its_way_out_is_cancelled() -> None:
    world = SlowForms(catalog(big=0, small=2), four_nodes())
    world.run(20)
    world.apply(catalog(big=0, small=2, args=["--new"]))
    world.run(5)
    (first,) = (r for r in world.fleet.replicas.values() if r.replaces is not None)
    original = world.fleet.replicas[first.replaces or ""]
    world.machines[original.node_ids[0]].connected = False
    world.run(20)
    assert original.state is ReplicaState.FAILED
    world.machines[original.node_ids[0]].connected = True
    for _ in range(20):
        world.run(1)
        moving = [
            r.replaces for r in world.fleet.replicas.values() if r.live and r.replaces in world.serving("small")
        ]
        assert len(moving) <= 1
    assert original.state is ReplicaState.READY


def test_a_returning_replica_that_was_on_its_way_out_is_stopped_when_its_replacement_is_ready() -> None:
    world = SlowForms(catalog(big=0, small=2), four_nodes())
    world.run(20)
    world.apply(catalog(big=0, small=2, args=["--new"]))
    world.run(5)
    (first,) = (r for r in world.fleet.replicas.values() if r.replaces is not None)
    original = world.fleet.replicas[first.replaces or ""]
    world.machines[original.node_ids[0]].connected = False
    world.run(20)
    world.slow = False
    world.run(2)
    assert (original.state, first.state) == (ReplicaState.FAILED, ReplicaState.READY)
    world.slow = True
    world.apply(catalog(big=0, small=5, args=["--new"]))
    world.run(2)
    world.machines[original.node_ids[0]].connected = True
    world.run(10)
    assert original.replica_id not in {event.subject for event in world.events if event.event == "resumed"}


def test_a_replacement_that_returns_in_the_middle_of_another_move_counts_like_any_other() -> None:
    # Found by simulation: both moves of the model went on at the same time.
    world = SlowForms(catalog(big=0, small=3), [*four_nodes(), Machine("node05", ["ib-b"])])
    world.run(20)
    world.apply(catalog(big=0, small=3, args=["--new"]))
    world.run(3)
    (first,) = (r for r in world.fleet.replicas.values() if r.replaces is not None)
    world.machines[first.node_ids[0]].connected = False
    world.run(20)
    assert first.state is ReplicaState.FAILED
    (second,) = (r for r in world.fleet.replicas.values() if r.replaces is not None and r.live)
    originals = [world.fleet.replicas[name] for name in world.serving("small")]
    crashed = next(r for r in originals if r.replica_id != second.replaces)
    world.machines[first.node_ids[0]].connected = True
    world.crash_engine(world.machines[crashed.node_ids[0]], f"{crashed.replica_id}.0")
    for _ in range(10):
        world.run(1)
        moving = [
            r.replaces for r in world.fleet.replicas.values() if r.live and r.replaces in world.serving("small")
        ]
        assert len(moving) <= 1, moving
    assert first.live
    assert first.replaces is None


def test_a_returning_replica_that_is_ending_is_not_resumed() -> None:
    world = World(catalog(big=0, small=1), [Machine("node01", []), Machine("node02", [], gpus=0)])
    world.run(10)
    (replica_id,) = world.serving("small")
    machine = world.machines["node01"]
    machine.connected = False
    world.run(400)
    world.change(machine, f"{replica_id}.0", "stopping", "engine exited with code 1")
    machine.connected = True
    world.run(10)
    assert "resumed" not in {event.event for event in world.events}
    (again,) = world.serving("small")
    assert again != replica_id


def test_a_server_restart_adopts_everything_and_starts_nothing(world: World) -> None:
    held = {name: set(machine.held) for name, machine in world.machines.items()}
    serving = (world.serving("big"), world.serving("small"))
    world.start_server()
    world.run(20)
    assert {name: set(machine.held) for name, machine in world.machines.items()} == held
    assert sorted(world.serving("big")) == sorted(serving[0])
    assert sorted(world.serving("small")) == sorted(serving[1])


def test_settling_is_over_as_soon_as_every_known_node_has_registered(world: World) -> None:
    world.settings = type(world.settings)(settle_s=45.0)
    world.machines["node04"].connected = False
    world.start_server()
    world.run(20)
    assert world.fleet.settling, "one is still not heard"
    world.machines["node04"].connected = True
    world.run(2)
    assert not world.fleet.settling
    (event,) = [event for event in world.events[-20:] if event.subject == "settling"]
    assert event.reason == "every known node has registered"


def test_half_a_gang_waits_for_settling_and_is_then_stopped(world: World) -> None:
    world.machines["node04"].alive = False
    world.settings = type(world.settings)(settle_s=10.0)
    world.start_server()
    world.run(5)
    adopting = world.replicas("big", ReplicaState.ADOPTING)
    assert len(adopting) == 1
    assert all(len(machine.held) >= 1 for name, machine in world.machines.items() if name == "node03")
    world.run(30)
    assert not world.machines["node03"].held or all(
        item.spec.replica_id not in adopting for item in world.machines["node03"].held.values()
    )


def test_a_model_gone_from_the_catalog_is_stopped_after_a_restart(world: World) -> None:
    world.catalog = catalog(small=0)
    world.start_server()
    world.run(20)
    assert not [
        item
        for machine in world.machines.values()
        for item in machine.held.values()
        if item.spec.model == "small"
    ]


def test_a_registration_that_names_nothing_fails_what_was_believed_to_run(world: World) -> None:
    machine = world.machines["node01"]
    gone = {item.spec.replica_id for item in machine.held.values()}
    machine.held.clear()
    machine.session = None
    world.run(3)
    failed = {event.subject for event in world.events if event.event == "failed"}
    assert gone <= failed
    world.run(30)
    assert len(world.serving("small")) == 2


def test_a_drain_brings_each_replacement_up_before_it_stops_the_original() -> None:
    world = World(catalog(big=1, small=2), four_nodes())
    world.run(20)
    node = world.fleet.replicas[world.replicas("small")[0]].node_ids[0]
    world.fleet.nodes[node].draining = True
    fewest = 2
    for _ in range(60):
        world.run(1)
        fewest = min(fewest, len(world.serving("small")))
    assert fewest == 2
    assert not world.machines[node].held
    assert len(world.serving("big")) == 1


def test_what_cannot_be_moved_is_left_serving_unless_forced(world: World) -> None:
    for node in world.fleet.nodes.values():
        node.draining = True
    world.run(30)
    assert len(world.serving("big")) == 2
    for node in world.fleet.nodes.values():
        node.drain_forced = True
    world.run(30)
    assert world.serving("big") == []
    assert not any(machine.held for machine in world.machines.values())


def test_a_changed_profile_rolls_one_replica_at_a_time(world: World) -> None:
    before = set(world.replicas("small"))
    world.catalog = catalog(args=["--x"])
    fewest = 2
    for _ in range(60):
        world.run(1)
        fewest = min(fewest, len(world.serving("small")))
    assert fewest == 2
    assert not before & set(world.replicas("small"))


def test_scaling_down_drains_the_newest_and_up_places_more(world: World) -> None:
    world.catalog = catalog(small=1)
    world.run(10)
    assert len(world.replicas("small")) == 1
    world.catalog = catalog(small=4)
    world.run(10)
    assert len(world.serving("small")) == 4


def test_a_replica_that_must_leave_and_is_one_too_many_is_not_replaced_first(world: World) -> None:
    # Found by simulation: a replacement was started and stopped again without end, each on another GPU.
    (gone, _), before = sorted(world.replicas("small")), set(world.fleet.replicas)
    world.fleet.nodes[world.fleet.replicas[gone].node_ids[0]].draining = True
    world.catalog = catalog(big=0, small=0)
    world.run(20)
    assert world.serving("small") == []
    started = {event.subject for event in world.events if event.event == "starting"}
    assert started == before


def test_gpus_that_no_node_has_are_explained_and_nothing_loops() -> None:
    world = World(
        Catalog(models=[CatalogModel(name="huge", profiles=[Profile(engine="sim", gpus_per_node=16)])]),
        four_nodes(),
    )
    world.run(20)
    assert not world.fleet.replicas


def test_a_crash_loop_backs_off_and_a_first_crash_does_not(world: World) -> None:
    replica_id = world.serving("small")[0]
    machine = world.machines[world.fleet.replicas[replica_id].node_ids[0]]
    world.crash_engine(machine, f"{replica_id}.0")
    world.run(4)
    assert len(world.serving("small")) == 2
    replica_id = world.serving("small")[0]
    machine = world.machines[world.fleet.replicas[replica_id].node_ids[0]]
    world.crash_engine(machine, f"{replica_id}.0")
    world.run(8)
    assert len(world.serving("small")) == 1
    world.run(10)
    assert len(world.serving("small")) == 2


def test_a_replica_that_served_for_long_owes_nothing_to_the_failures_before_it(world: World) -> None:
    def crash() -> None:
        replica_id = world.serving("small")[0]
        machine = world.machines[world.fleet.replicas[replica_id].node_ids[0]]
        world.crash_engine(machine, f"{replica_id}.0")

    for _ in range(3):
        crash()
        world.run(60)
    assert world.fleet.backoff["small", "default"].failures == 3
    world.run(world.settings.backoff_reset_s)
    crash()
    world.run(4)
    assert len(world.serving("small")) == 2, "tried again at once"
    assert world.fleet.backoff["small", "default"].failures == 1


def test_the_failures_of_one_form_are_not_counted_against_another(world: World) -> None:
    # As when one of the old form fails while the new one rolls.
    world.fleet.backoff["small", "default"] = Backoff(5, world.now + 300, "it broke", "small-0", "an older form")
    replica_id = world.serving("small")[0]
    machine = world.machines[world.fleet.replicas[replica_id].node_ids[0]]
    world.crash_engine(machine, f"{replica_id}.0")
    world.run(4)
    assert len(world.serving("small")) == 2, "tried again at once"
    assert world.fleet.backoff["small", "default"].failures == 1


def test_a_restart_that_was_asked_for_replaces_the_replica(world: World) -> None:
    replica_id = world.serving("small")[0]
    world.fleet.replicas[replica_id].restart_by = "test"
    world.run(20)
    assert replica_id not in world.fleet.replicas
    assert len(world.serving("small")) == 2


def test_a_late_message_of_an_ended_shard_does_not_bring_it_back(world: World) -> None:
    machine = world.machines["node01"]
    (shard_id, held) = next(iter(machine.held.items()))
    replica_id = held.spec.replica_id
    world.crash_engine(machine, shard_id)
    world.run(5)
    assert replica_id not in world.fleet.replicas
    from llmgw.fleet.observe import report

    report(world.fleet, "node01", None, [held], world.now)
    world.turn()
    assert replica_id not in world.fleet.replicas


def test_a_gang_that_died_of_a_node_is_not_placed_on_that_node_again(world: World) -> None:
    # node02 dies; its agent's silence shows only seconds later, but the leader on node01 fails at once.
    world.kill("node02")
    world.run(3)
    (replacement,) = [
        r for r in world.replicas("big") if world.fleet.replicas[r].state is ReplicaState.STARTING
    ] or [r for r in world.serving("big") if r not in ("big-1", "big-2")]
    assert set(world.fleet.replicas[replacement].node_ids) == {"node03", "node04"}


def test_a_failure_s_reason_ends_with_the_engine_s_own_last_line(world: World) -> None:
    replica_id = world.serving("small")[0]
    machine = world.machines[world.fleet.replicas[replica_id].node_ids[0]]
    world.crash_engine(machine, f"{replica_id}.0")
    held = machine.held[f"{replica_id}.0"]
    tail = ["loading", "CUDA error: out of memory", "  "]
    machine.held[f"{replica_id}.0"] = msgspec.structs.replace(held, output_tail=tail)
    world.run(1)
    reason = next(e.reason for e in world.events if e.subject == replica_id and e.event == "failed")
    assert reason.endswith("engine exited with code 1; its last words: CUDA error: out of memory")


def test_a_node_without_free_ports_takes_no_replica_and_is_named_with_its_range() -> None:
    machines = [Machine("node01", ["ib-a"], free_ports=0), Machine("node02", ["ib-a"], free_ports=1)]
    world = World(catalog(big=1, small=1), machines)
    world.run(20)
    (small,) = (world.fleet.replicas[name] for name in world.serving("small"))
    assert small.node_ids == ["node02"]
    assert world.replicas("big") == []
    model = world.catalog.models[0]
    verdict = place(world.fleet, Wanted(model.name, model.profiles[0]), Room.of(world.fleet))
    assert verdict.refused == {"has too few free ports for an engine": ["node01", "node02"]}
    assert verdict.details == {
        "node01": "has no free port in 21000-21999; widen supervisor.port_range in its agent.yaml",
        "node02": "has 1 of 2 free ports in 21000-21999; widen supervisor.port_range in its agent.yaml",
    }
    for machine in machines:
        machine.free_ports = 2
    world.run(20)
    assert len(world.serving("big")) == 1


@pytest.mark.parametrize("shard_id", ["other", "small-9.1", "small-9.²", "small-9.00", "."])
def test_a_shard_that_no_server_has_named_is_ended_once_and_makes_no_replica(shard_id: str) -> None:
    world = World(catalog(big=0, small=1), four_nodes())
    spec = ShardSpec(
        shard_id=shard_id,
        replica_id="small-9",
        model="small",
        profile="default",
        profile_hash="x",
        served_names=["small"],
        engine="sim",
    )
    world.machines["node01"].held[shard_id] = HeldShard(spec=spec, phase="ready", http_port=22)
    world.run(20)
    assert "small-9" not in world.fleet.replicas
    (told,) = [event for event in world.events if event.event == "disowned"]
    assert told.reason == f"{shard_id}: no replica here owns it"
    assert shard_id not in world.machines["node01"].held
    assert not world.fleet.nodes["node01"].disowned
