"""What the demo can do unattended: each scenario breaks something, prints a timeline, and judges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.planted.every import plant_in_files
from llmgw.sim.scenarios.agent_restart import agent_restart
from llmgw.sim.scenarios.core_dead import OPTIONS as CORE_DEAD_OPTIONS
from llmgw.sim.scenarios.core_dead import core_dead
from llmgw.sim.scenarios.drain import drain
from llmgw.sim.scenarios.engine_crash import engine_crash
from llmgw.sim.scenarios.gateway_chaos import OPTIONS as CHAOS_OPTIONS
from llmgw.sim.scenarios.gateway_chaos import gateway_chaos
from llmgw.sim.scenarios.judge import Judge
from llmgw.sim.scenarios.node_loss import node_loss
from llmgw.sim.scenarios.partition import partition
from llmgw.sim.scenarios.problems import OPTIONS as PROBLEMS_OPTIONS
from llmgw.sim.scenarios.problems import problems
from llmgw.sim.scenarios.rolling_update import rolling_update
from llmgw.sim.scenarios.server_restart import server_restart

Scenario = Callable[[DemoFleet, Judge], Awaitable[None]]

SCENARIOS: dict[str, Scenario] = {
    "node-loss": node_loss,
    "engine-crash": engine_crash,
    "agent-restart": agent_restart,
    "server-restart": server_restart,
    "partition": partition,
    "drain": drain,
    "rolling-update": rolling_update,
    "core-dead": core_dead,
    "gateway-chaos": gateway_chaos,
    "problems": problems,
}

OPTIONS: dict[str, dict[str, Any]] = {
    "core-dead": CORE_DEAD_OPTIONS,
    "gateway-chaos": CHAOS_OPTIONS,
    "problems": PROBLEMS_OPTIONS,
}
"""What a scenario's demo is given beside what the user chose."""

PREPARE: dict[str, Callable[[DemoFleet], None]] = {"problems": plant_in_files}
"""What a scenario does to its demo's files before anything runs."""
