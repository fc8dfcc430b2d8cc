"""rolling-update: a profile changes under load; its replicas are replaced one by one."""

from __future__ import annotations

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.scenarios.judge import Judge, ready_replicas
from llmgw.sim.scenarios.under_load import expect_nothing_failed, under_load

ROLLED_S_MAX = 120.0


async def rolling_update(fleet: DemoFleet, judge: Judge) -> None:
    """Change the small model's arguments in server.yaml and send SIGHUP: one replica of it moves at a time."""
    async with under_load(fleet, judge) as load:
        old = {r["replica_id"] for r in await ready_replicas(fleet, "demo/small")}
        fleet.change_arguments("demo/small", ["--answer-tokens", "80"])
        judge.tell("demo/small has other arguments; the server is told by SIGHUP")
        fewest, most_moving = len(old), 0

        async def rolled() -> bool:
            nonlocal fewest, most_moving
            replicas = [r for r in await fleet.get("replicas") if r["model"] == "demo/small"]
            ready = {r["replica_id"] for r in replicas if r["state"] == "ready"}
            fewest = min(fewest, len(ready))
            most_moving = max(most_moving, len([r for r in replicas if r["state"] in ("starting", "draining")]))
            return len(ready) == len(old) and not old & {r["replica_id"] for r in replicas}

        if await judge.wait("every small replica has the new form", ROLLED_S_MAX, rolled, every_s=0.1):
            judge.tell("every small replica has the new form")
        judge.expect(fewest == len(old), f"never fewer than {fewest} were ready")
        judge.expect(most_moving <= 2, "one replica moved at a time")
    expect_nothing_failed(judge, load)
