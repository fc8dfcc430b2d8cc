"""server-restart: the control plane is killed while clients stream, and started again."""

from __future__ import annotations

import asyncio

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.load import Load
from llmgw.sim.scenarios.judge import SETTLE_S, Judge, ready_replicas, wait_all_ready


async def server_restart(fleet: DemoFleet, judge: Judge) -> None:
    """Kill the server under load, start it again: everything is adopted, nothing restarted, nothing failed."""
    judge.tell("waiting for the fleet")
    if not await wait_all_ready(fleet, judge):
        return
    before = {replica["replica_id"]: replica for replica in await ready_replicas(fleet)}
    engines = fleet.engines()
    entries = await fleet.get("history?limit=1")
    judge.tell(f"{len(before)} replicas are ready, {len(engines)} engine processes run")
    load = Load(fleet.api, ["demo/big", "demo/small"])
    load.start()

    async def under_way() -> bool:
        return load.counts()["served"] >= 12

    await judge.wait("load is served", 30.0, under_way)
    judge.restart_clock()
    served = load.counts()["served"]
    fleet.kill_server()
    judge.tell("the server is killed; routers, agents and engines go on")

    async def served_without() -> bool:
        return load.counts()["served"] >= served + 12

    await judge.wait("requests are served without a control plane", 30.0, served_without)
    judge.tell(f"{load.counts()['served'] - served} requests were served without a control plane")
    fleet.start_server(settle_s=SETTLE_S)
    await fleet.wait_for_admin()
    judge.tell("the server is back")

    async def adopted() -> bool:
        return {r["replica_id"] for r in await ready_replicas(fleet)} >= set(before)

    await judge.wait("every replica is adopted", 30.0, adopted)
    judge.tell("every replica is adopted")

    async def settled() -> bool:
        return not (await fleet.get("server"))["settling"]

    await judge.wait("settling is over", 60.0, settled)
    again = load.counts()["served"]

    async def served_again() -> bool:
        return load.counts()["served"] >= again + 12

    await judge.wait("requests are served with the new control plane", 30.0, served_again)
    await asyncio.sleep(1.0)  # let a wrong decision show, had one been taken
    await load.stop()
    after = {replica["replica_id"]: replica for replica in await fleet.get("replicas")}
    judge.expect(set(after) == set(before), f"the same {len(before)} replicas run, nothing else was placed")
    judge.expect(
        all(after[key]["nodes"] == before[key]["nodes"] for key in before if key in after),
        "each on its own nodes",
    )
    judge.expect(fleet.engines() == engines, f"the same {len(engines)} engine processes run")
    newer = await fleet.get("history?limit=500")
    judge.expect(bool(newer) and newer[0]["id"] > entries[0]["id"], "history goes on where it was")
    judge.tell(
        f"requests: {len(load.requests)} sent, {load.counts()['served']} served, {len(load.failed)} failed"
    )
    for request in load.failed[:5]:
        judge.tell(f"  {request.model} at {request.replica}: {request.outcome}")
    judge.expect(not load.failed, "no stream was broken and no request failed")
