"""What the demo can do unattended: each scenario breaks something, prints a timeline, and judges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.scenarios.judge import Judge
from llmgw.sim.scenarios.node_loss import node_loss
from llmgw.sim.scenarios.server_restart import server_restart

Scenario = Callable[[DemoFleet, Judge], Awaitable[None]]

SCENARIOS: dict[str, Scenario] = {
    "node-loss": node_loss,
    "server-restart": server_restart,
}
