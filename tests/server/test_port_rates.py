"""How fast ports are, through the hub that takes the heartbeats."""

from __future__ import annotations

import asyncio

from llmgw.messages.agent import Inventory, Port, Report
from llmgw.server.seams import Clock
from tests.server.test_metrics import NOW, World


def port(words: int) -> Port:
    return Port(adapter="mlx5_0", port=1, counters={"port_xmit_data": words, "port_rcv_data": 0})


def test_two_heartbeats_of_a_node_tell_how_fast_its_ports_are() -> None:
    world, now = World(), [1000.0]
    world.hub.clock = Clock(monotonic=lambda: now[0], wall=lambda: NOW)
    session = world.register("node01", ports=[port(0)])
    for beat in (1, 2):
        now[0] += 5.0
        message = Report(session=session, inventory=Inventory(ports=[port(beat * 5 * 10**9)]))
        asyncio.run(world.hub.report(message))
    assert world.hub.port_rates.rate("node01", "mlx5_0", 1, now[0]).tx_gbps == 32.0
    world.hub.remove_node("node01", "somebody")
    assert world.hub.port_rates.rate("node01", "mlx5_0", 1, now[0]).tx_gbps is None
