"""agent-restart: an agent is killed and started again; its engines do not notice."""

from __future__ import annotations

import os
import signal

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.scenarios.judge import Judge, ready_replicas
from llmgw.sim.scenarios.under_load import expect_nothing_failed, served_more, settle_down, under_load

NODE = "node01"


async def agent_restart(fleet: DemoFleet, judge: Judge) -> None:
    """Kill an agent alone and start it again: engine pids unchanged, nothing failed, nothing replaced."""
    async with under_load(fleet, judge) as load:
        engines = fleet.engines(NODE)
        before = {replica["replica_id"] for replica in await ready_replicas(fleet)}
        os.kill(fleet.pid(NODE), signal.SIGKILL)
        judge.tell(f"the agent of {NODE} is killed; its {len(engines)} engines go on")
        await served_more(load, judge, 12, "requests are served without the agent")
        fleet.start_agent(NODE)

        async def back() -> bool:
            node = next(node for node in await fleet.get("nodes") if node["node_id"] == NODE)
            return bool(node["state"] == "ready" and node["last_heard_s"] < 2)

        if await judge.wait("the agent is back", 20.0, back):
            judge.tell("the agent is back")
        await served_more(load, judge, 12, "requests are served with the new agent")
        await settle_down()
        after = {replica["replica_id"] for replica in await ready_replicas(fleet)}
        judge.expect(fleet.engines(NODE) == engines, f"the same {len(engines)} engine processes run on {NODE}")
        judge.expect(after == before, "the same replicas serve")
    expect_nothing_failed(judge, load)
