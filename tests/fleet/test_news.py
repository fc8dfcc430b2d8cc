"""What a report says is decided on at once, unless it only repeats the last one."""

from __future__ import annotations

import msgspec
import pytest

from llmgw.fleet.observe import is_news, report
from llmgw.messages.agent import HeldShard, Inventory
from tests.fleet.test_reconcile import catalog, four_nodes
from tests.fleet.world import Machine, World


@pytest.fixture
def world() -> World:
    world = World(catalog(), four_nodes())
    world.run(20)
    return world


def news(world: World, machine: Machine, inventory: Inventory | None = None, *held: HeldShard) -> bool:
    return is_news(world.fleet, machine.node_id, inventory, list(held) or list(machine.held.values()))


def test_a_heartbeat_with_other_temperatures_is_no_news(world: World) -> None:
    machine = world.machines["node01"]
    inventory = machine.inventory()
    warmer = [msgspec.structs.replace(gpu, temperature_c=70) for gpu in inventory.gpus]
    assert machine.held
    assert not news(world, machine, msgspec.structs.replace(inventory, gpus=warmer))


def test_a_gpu_that_can_no_longer_be_used_is_news(world: World) -> None:
    machine = world.machines["node01"]
    inventory = machine.inventory()
    broken = msgspec.structs.replace(inventory.gpus[0], usable=False, reason="it fell off the bus")
    assert news(world, machine, msgspec.structs.replace(inventory, gpus=[broken, *inventory.gpus[1:]]))


def test_a_fabric_that_goes_down_is_news(world: World) -> None:
    machine = world.machines["node01"]
    inventory = machine.inventory()
    down = [msgspec.structs.replace(offer, usable=False) for offer in inventory.fabrics]
    assert news(world, machine, msgspec.structs.replace(inventory, fabrics=down))


def test_another_phase_of_a_shard_is_news_once(world: World) -> None:
    machine = world.machines["node01"]
    shard_id = min(machine.held)
    world.change(machine, shard_id, "stopping")
    assert news(world, machine)
    report(world.fleet, machine.node_id, None, list(machine.held.values()), world.now)
    assert not news(world, machine)


def test_a_shard_that_nobody_here_knows_is_news(world: World) -> None:
    machine = world.machines["node01"]
    held = next(iter(machine.held.values()))
    stranger = msgspec.structs.replace(
        held, spec=msgspec.structs.replace(held.spec, shard_id="other-1.0", replica_id="other-1")
    )
    assert news(world, machine, None, stranger)


def test_any_word_of_an_unreachable_node_is_news(world: World) -> None:
    machine = world.machines["node02"]
    machine.connected = False
    world.run(30)
    assert news(world, machine)
