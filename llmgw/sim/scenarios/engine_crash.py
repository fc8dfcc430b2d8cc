"""engine-crash: one engine is killed under load; it is seen at once and replaced."""

from __future__ import annotations

import os
import signal

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.scenarios.judge import Judge, ready_replicas
from llmgw.sim.scenarios.under_load import expect_failed_only_on, under_load

SEEN_S_MAX = 2.0
REPLACED_S_MAX = 30.0


async def engine_crash(fleet: DemoFleet, judge: Judge) -> None:
    """Kill the leader of a small replica: out of the routes within two seconds, replaced, the rest untouched."""
    async with under_load(fleet, judge) as load:
        victim = (await ready_replicas(fleet, "demo/small"))[0]
        victim_id = victim["replica_id"]
        os.kill(victim["shards"][0]["engine_pid"], signal.SIGKILL)
        judge.tell(f"the engine of {victim_id} is killed")

        async def seen() -> bool:
            return victim_id not in {r["replica_id"] for r in await ready_replicas(fleet)}

        if await judge.wait("the control plane sees it", SEEN_S_MAX, seen, every_s=0.05):
            judge.tell("seen: it is out of the routes")

        async def replaced() -> bool:
            return len(await ready_replicas(fleet, "demo/small")) >= fleet.options.replicas_small

        if await judge.wait("a replacement is ready", REPLACED_S_MAX, replaced):
            judge.tell("a replacement is ready")
    history = await fleet.get(f"history?subject={victim_id}")
    judge.expect(
        any("SIGKILL" in item["reason"] for item in history), "history says that it was killed by SIGKILL"
    )
    expect_failed_only_on(judge, load, {victim_id})
