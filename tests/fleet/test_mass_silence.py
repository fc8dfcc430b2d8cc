"""When most nodes fall silent at once, the control plane doubts itself."""

from __future__ import annotations

import pytest

from llmgw.fleet.model import NodeState
from llmgw.fleet.observe import forgive_pause
from tests.fleet.test_reconcile import catalog, four_nodes
from tests.fleet.world import Machine, World


@pytest.fixture
def world() -> World:
    world = World(catalog(big=0, small=4), four_nodes())
    world.run(20)
    return world


def cut(world: World, *nodes: str) -> None:
    for node in nodes:
        world.machines[node].connected = False


def states(world: World) -> dict[str, str]:
    return {node.node_id: node.state.value for node in world.fleet.nodes.values()}


class Deaf(World):
    """A control plane whose own network is gone: neither messages nor probes get through."""

    def works(self, replica: object) -> bool:
        return False


def test_nothing_is_lost_when_most_nodes_fall_silent_together_and_their_shards_cannot_be_seen() -> None:
    world = Deaf(catalog(big=0, small=4), four_nodes())
    world.run(20)
    serving = world.serving("small")
    cut(world, "node01", "node02", "node03")
    world.run(3000)
    assert set(states(world).values()) == {"ready", "unreachable"}
    assert world.serving("small") == serving
    assert any(event.event == "silence doubted" for event in world.events)


def test_when_a_third_is_back_the_others_get_another_while_and_are_then_lost() -> None:
    world = Deaf(catalog(big=0, small=4), four_nodes())
    world.run(20)
    cut(world, "node01", "node02", "node03")
    world.run(60)
    world.machines["node01"].connected = True
    world.run(40)
    assert states(world) == {
        "node01": "ready",
        "node02": "unreachable",
        "node03": "unreachable",
        "node04": "ready",
    }
    world.run(20)
    assert states(world)["node02"] == "lost"


def test_one_that_falls_silent_a_little_after_the_others_is_spared_as_they_are() -> None:
    world = Deaf(catalog(big=0, small=5), [*four_nodes(), Machine("node05", [])])
    world.run(20)
    cut(world, "node01", "node02", "node03")
    world.run(6)
    cut(world, "node04")
    world.run(34)
    world.machines["node01"].connected = True
    world.run(40)
    assert states(world)["node04"] == "unreachable"
    world.run(20)
    assert states(world)["node04"] == "lost"


def test_half_of_the_nodes_is_not_most(world: World) -> None:
    world.kill("node01")
    world.kill("node02")
    world.run(30)
    assert world.fleet.nodes["node01"].state is NodeState.LOST
    assert world.fleet.nodes["node02"].state is NodeState.LOST


def test_a_node_that_was_silent_for_long_does_not_count_towards_the_window() -> None:
    world = World(catalog(big=0, small=3), four_nodes()[:3])
    world.run(20)
    cut(world, "node01")
    world.run(100)
    world.kill("node02")
    world.run(30)
    assert world.fleet.nodes["node02"].state is NodeState.LOST


def test_a_pause_of_the_server_brings_nobody_back_and_shortens_nothing() -> None:
    world = Deaf(catalog(big=0, small=4), four_nodes())
    world.run(20)
    cut(world, "node01", "node02", "node03")
    world.run(60)
    doubted = world.fleet.doubted
    world.now += 100
    forgive_pause(world.fleet, 100, world.now)
    world.run(5)
    assert world.fleet.doubted == doubted
    world.machines["node01"].connected = True
    world.run(5)
    assert not world.fleet.doubted
    world.now += 30
    forgive_pause(world.fleet, 30, world.now)
    world.run(30)
    assert states(world)["node02"] == "unreachable"
    world.run(20)
    assert states(world)["node02"] == "lost"


def test_removing_the_nodes_that_are_really_gone_ends_the_doubt() -> None:
    from llmgw.fleet.carry_out import forget_node

    world = Deaf(catalog(big=0, small=4), four_nodes())
    world.run(20)
    for node in ("node01", "node02", "node03"):
        world.kill(node)
    world.run(60)
    for node in ("node01", "node02", "node03"):
        forget_node(world.fleet, node, world.now)
    world.run(60)
    assert not world.fleet.doubted
    assert len(world.serving("small")) == 4
