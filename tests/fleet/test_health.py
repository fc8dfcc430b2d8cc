"""Hung is not busy: what leaves the rotation, what returns, and what is given up."""

from __future__ import annotations

import pytest

from llmgw.fleet.health import counters_wanted, probes_wanted
from llmgw.fleet.model import Replica, ReplicaState
from llmgw.fleet.observe import in_flight, unanswered, witness
from llmgw.fleet.settings import FleetSettings
from tests.fleet.test_reconcile import catalog, four_nodes
from tests.fleet.world import World

SETTINGS = FleetSettings(settle_s=2.0, stall_after_s=120.0, stalled_limit_s=600.0)


class Stalling(World):
    """A world in which one replica's engine shows no sign of life while requests wait on it."""

    victim: str | None = None

    def works(self, replica: Replica) -> bool:
        return replica.replica_id != self.victim and super().works(replica)


@pytest.fixture
def world() -> Stalling:
    world = Stalling(catalog(big=0, small=4), four_nodes(), SETTINGS)
    world.run(20)
    assert len(world.serving("small")) == 4
    return world


def stall(world: Stalling, *, busy: bool) -> str:
    victim = world.serving("small")[0]
    world.victim = victim
    if busy:
        in_flight(world.fleet, "router", {victim: 1}, world.now)
    else:
        unanswered(world.fleet, victim, world.now + 0.5)
    return victim


def test_work_without_progress_leaves_the_rotation_and_returns_with_the_first_progress(world: Stalling) -> None:
    victim = stall(world, busy=True)
    world.run(110)
    assert victim in world.serving("small")
    world.run(15)
    assert victim not in world.serving("small")
    assert world.fleet.replicas[victim].state is ReplicaState.READY
    world.victim = None
    witness(world.fleet, victim, world.now)
    world.turn()
    assert victim in world.serving("small")


def test_a_long_prefill_is_never_failed_while_a_probe_is_answered_or_none_was_sent(world: Stalling) -> None:
    victim = stall(world, busy=True)
    world.run(2000)
    assert world.fleet.replicas[victim].state is ReplicaState.READY


def test_it_is_failed_when_probes_go_unanswered_as_well(world: Stalling) -> None:
    victim = stall(world, busy=True)
    world.run(200)
    unanswered(world.fleet, victim, world.now)
    world.run(400)
    assert victim in world.fleet.replicas
    world.run(200)
    failed = [event for event in world.events if event.subject == victim and event.event == "failed"]
    assert "no probe was answered" in failed[0].reason
    world.victim = None
    world.run(30)
    assert len(world.serving("small")) == 4


def test_an_idle_engine_with_a_dead_core_is_found_by_probes_alone(world: Stalling) -> None:
    victim = stall(world, busy=False)
    world.run(130)
    assert victim not in world.serving("small")


def test_an_idle_replica_that_answers_is_asked_seldom_and_a_suspended_one_more_often(world: Stalling) -> None:
    replica = world.fleet.replicas[world.serving("small")[0]]
    replica.witnessed_at = replica.probed_at = world.now - 59
    assert replica not in probes_wanted(world.fleet, world.now, SETTINGS)
    assert replica in probes_wanted(world.fleet, world.now + 1, SETTINGS)
    replica.suspended = "x"
    replica.witnessed_at = replica.probed_at = world.now - 16
    assert replica in probes_wanted(world.fleet, world.now, SETTINGS)


def test_counters_are_read_only_of_those_that_are_busy_and_silent(world: Stalling) -> None:
    replica = world.fleet.replicas[world.serving("small")[0]]
    in_flight(world.fleet, "router", {replica.replica_id: 2}, world.now)
    assert counters_wanted(world.fleet, world.now + 5, SETTINGS) == []
    assert counters_wanted(world.fleet, world.now + 16, SETTINGS) == [replica]
    in_flight(world.fleet, "router", {}, world.now)
    assert counters_wanted(world.fleet, world.now + 16, SETTINGS) == []


def test_a_request_after_a_long_idle_time_is_no_stall(world: Stalling) -> None:
    replica = world.fleet.replicas[world.serving("small")[0]]
    replica.witnessed_at = world.now - 1000
    in_flight(world.fleet, "router", {replica.replica_id: 1}, world.now)
    world.turn()
    assert replica.suspended is None


def test_no_more_than_two_are_given_up_for_health_in_a_minute(world: Stalling) -> None:
    for replica in world.fleet.replicas.values():
        replica.suspended, replica.suspended_at = "x", world.now - 700
        replica.witnessed_at = world.now - 800
        replica.probe_failed_since = world.now - 750
    world.turn()
    states = [replica.state for replica in world.fleet.replicas.values()]
    assert states.count(ReplicaState.FAILED) == 2


def test_one_that_came_back_once_is_not_resumed_after_another_failure(world: Stalling) -> None:
    # Found by simulation: it was resumed and given up again in one turn, without end.
    replica = world.fleet.replicas[world.serving("small")[0]]
    replica.returned = True
    replica.suspended, replica.suspended_at = "x", world.now - 700
    replica.witnessed_at, replica.probe_failed_since = world.now - 800, world.now - 750
    world.victim = replica.replica_id
    world.turn()
    assert replica.state is ReplicaState.FAILED
