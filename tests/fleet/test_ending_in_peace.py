"""A planned stop waits for every live router: its route is gone there, and no request is on it (invariant 6)."""

from __future__ import annotations

import pytest

from llmgw.fleet.model import ReplicaState, RouterState
from llmgw.messages.routes import TableVersion
from tests.fleet.test_reconcile import catalog, four_nodes
from tests.fleet.world import World


@pytest.fixture
def world() -> World:
    """One small replica too many, which drains, and a router that has acknowledged nothing yet."""
    world = World(catalog(big=0, small=2), four_nodes())
    world.run(20)
    world.fleet.routers["r1"] = RouterState(acked=TableVersion(str(world.epoch), 0))
    world.catalog = catalog(big=0, small=1)
    world.run(2)
    assert [world.fleet.replicas[name].state for name in draining(world)] == [ReplicaState.DRAINING]
    return world


def draining(world: World) -> list[str]:
    return world.replicas("small", ReplicaState.DRAINING)


def ack(world: World, router: str = "r1", number: int = 1, **in_flight: int) -> None:
    """A router says that it routes by a table without the replica, and what runs there."""
    version = TableVersion(str(world.epoch), number)
    world.fleet.routers[router] = RouterState(acked=version, in_flight=in_flight)


def test_it_is_stopped_when_every_router_has_acknowledged_and_none_has_a_request_on_it(world: World) -> None:
    (name,) = draining(world)
    world.fleet.routers["r2"] = RouterState(acked=TableVersion("another epoch", 9))
    world.run(5)
    assert draining(world) == [name], "no router has taken the route away"
    ack(world, "r1", **{name: 2})
    ack(world, "r2")
    world.run(5)
    assert draining(world) == [name], "two requests run"
    ack(world, "r1")
    world.run(2)
    assert draining(world) == []
    (stopping,) = [event for event in world.events if event.subject == name and event.event == "stopping"]
    assert stopping.reason == "1 wanted, 2 there"


def test_it_is_stopped_when_the_grace_is_over_whatever_runs(world: World) -> None:
    (name,) = draining(world)
    ack(world, **{name: 1})
    world.run(world.settings.drain_grace_s - 5)
    assert draining(world) == [name]
    world.run(6)
    assert draining(world) == []
    (stopping,) = [event for event in world.events if event.subject == name and event.event == "stopping"]
    assert stopping.reason == "1 wanted, 2 there; requests still ran after 60 s"


def test_a_router_that_has_ended_is_waited_for_no_more(world: World) -> None:
    (name,) = draining(world)
    world.run(5)
    assert draining(world) == [name]
    del world.fleet.routers["r1"]
    world.run(1)
    assert draining(world) == []
