"""partition: a node is cut off from everybody, replaced, and comes back with its old copies."""

from __future__ import annotations

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.scenarios.judge import Judge, gpus_used_twice, ready_replicas, wait_all_ready
from llmgw.sim.scenarios.under_load import expect_failed_only_on, settle_down, under_load

NODE = "node02"
REPLACED_S_MAX = 60.0


async def partition(fleet: DemoFleet, judge: Judge) -> None:
    """Freeze a node (agent and engines stay, and answer nobody) until it was replaced; then let it go on."""
    async with under_load(fleet, judge) as load:
        doomed = {r["replica_id"]: r for r in await ready_replicas(fleet) if NODE in r["nodes"]}
        fleet.freeze(NODE)
        judge.tell(f"{NODE} answers nobody any more ({', '.join(doomed)})")

        async def lost() -> bool:
            node = next(node for node in await fleet.get("nodes") if node["node_id"] == NODE)
            return bool(node["state"] == "lost")

        if await judge.wait(f"{NODE} is declared lost", 40.0, lost):
            judge.tell(f"{NODE} is declared lost")

        async def replaced() -> bool:
            ready = [r for r in await ready_replicas(fleet) if r["replica_id"] not in doomed]
            return len(ready) >= fleet.options.replicas_big + fleet.options.replicas_small

        if await judge.wait("everything is served elsewhere", REPLACED_S_MAX, replaced):
            judge.tell("everything is served elsewhere")
        fleet.thaw(NODE)
        judge.tell(f"{NODE} is back, with what it ran before")

        async def clean() -> bool:
            # Its old copies are ended, and nothing else is.
            nodes = {node["node_id"]: node["state"] for node in await fleet.get("nodes")}
            wanted = {shard["shard_id"] for r in await fleet.get("replicas") for shard in r["shards"]}
            return nodes[NODE] == "ready" and set(fleet.engines().values()) <= wanted and len(wanted) > 0

        await judge.wait("one copy of everything remains", 40.0, clean)
        await wait_all_ready(fleet, judge)
        await settle_down()
        replicas = await fleet.get("replicas")
        wanted = fleet.options.replicas_big + fleet.options.replicas_small
        judge.expect(len(replicas) == wanted, f"{wanted} replicas run, not one more")
        twice = gpus_used_twice(replicas)
        judge.expect(not twice, "no GPU is used twice" + (f": {twice}" if twice else ""))
    expect_failed_only_on(judge, load, set(doomed))
