"""core-dead: an engine's core dies while its `/health` goes on saying 200."""

from __future__ import annotations

from typing import Any

import httpx

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.scenarios.judge import Judge, ready_replicas
from llmgw.sim.scenarios.under_load import expect_failed_only_on, under_load

OUT_S_MAX = 30.0
REPLACED_S_MAX = 60.0

# Shorter than an operator's, so that the scenario is watched and not waited for.
LIVENESS = {"stall_after": "5s", "stalled_limit": "8s", "probe_interval": "4s", "probe_timeout": "2s"}
OPTIONS: dict[str, Any] = {"liveness": LIVENESS, "first_byte_timeout": "8s"}


async def core_dead(fleet: DemoFleet, judge: Judge) -> None:
    """The engine accepts and never answers: out of the rotation first, failed and replaced later."""
    async with under_load(fleet, judge) as load:
        victim = (await ready_replicas(fleet, "demo/small"))[0]
        victim_id = victim["replica_id"]
        base = f"http://{victim['endpoint']}"
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            await client.post(f"{base}/sim/faults", json={"core_dead": True})
            health = await client.get(f"{base}/health")
        judge.expect(health.status_code == 200, f"{victim_id} is dead inside, and its /health says 200")
        judge.tell("its core is dead")

        async def out() -> bool:
            found = [r for r in await fleet.get("replicas") if r["replica_id"] == victim_id]
            return not found or not found[0]["routed"]

        if await judge.wait("it leaves the rotation", OUT_S_MAX, out):
            judge.tell("it is out of the rotation")

        async def replaced() -> bool:
            ready = await ready_replicas(fleet, "demo/small")
            return (
                victim_id not in {r["replica_id"] for r in ready} and len(ready) >= fleet.options.replicas_small
            )

        if await judge.wait("it is replaced", REPLACED_S_MAX, replaced):
            judge.tell("it is replaced")
    history = await fleet.get(f"history?subject={victim_id}")
    events = [item["event"] for item in reversed(history)]
    judge.expect(
        "out of rotation" in events
        and "failed" in events
        and events.index("out of rotation") < events.index("failed"),
        "it left the rotation first and was failed later",
    )
    expect_failed_only_on(judge, load, {victim_id})
