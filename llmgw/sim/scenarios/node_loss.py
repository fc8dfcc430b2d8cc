"""node-loss: a node of a two-node replica loses power while clients stream."""

from __future__ import annotations

import time

import httpx

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.load import Load, Request, run_request
from llmgw.sim.scenarios.judge import Judge, gpus_used_twice, listening_shards, ready_replicas, wait_all_ready

SERVED_THROUGH_EACH_S = 30.0
VICTIM = "node02"
REPLACED_S_MAX = 45.0


async def node_loss(fleet: DemoFleet, judge: Judge) -> None:
    """Kill a node with its engines; its replicas return on the fabric that can hold them."""
    judge.tell("waiting for the fleet")
    if not await wait_all_ready(fleet, judge):
        return
    replicas = await ready_replicas(fleet)
    judge.tell(f"{len(replicas)} replicas are ready")
    await _serve_through_each(fleet, judge, replicas)
    listening = listening_shards(replicas)
    wrong = [
        shard["shard_id"]
        for replica in replicas
        for shard in replica["shards"]
        if listening[shard["shard_id"]] != (shard["rank"] == 0)
    ]
    judge.expect(not wrong, "only the leaders listen" + (f"; not so: {', '.join(wrong)}" if wrong else ""))

    doomed = {replica["replica_id"]: replica for replica in replicas if VICTIM in replica["nodes"]}
    before = {replica["replica_id"] for replica in replicas}
    judge.expect(
        any(len(r["nodes"]) > 1 for r in doomed.values()), f"{VICTIM} holds a part of a two-node replica"
    )
    load = Load(fleet.api, ["demo/big", "demo/small"])
    load.start()

    async def under_way() -> bool:
        return load.counts()["served"] >= 12

    await judge.wait("load is served", 30.0, under_way)
    judge.restart_clock()
    fleet.kill_node(VICTIM)
    judge.tell(f"{VICTIM} is killed with its engines ({', '.join(doomed)})")

    async def replaced() -> bool:
        now = [r for r in await ready_replicas(fleet) if r["replica_id"] not in doomed]
        return all(
            sum(1 for r in now if r["model"] == old["model"])
            >= sum(1 for r in replicas if r["model"] == old["model"])
            for old in doomed.values()
        )

    came_back = await judge.wait("every lost replica has a serving replacement", REPLACED_S_MAX, replaced)
    judge.tell("every lost replica has a serving replacement" if came_back else "gave up waiting")

    async def declared_lost() -> bool:
        nodes = await fleet.get("nodes")
        return any(node["node_id"] == VICTIM and node["state"] == "lost" for node in nodes)

    await judge.wait(f"{VICTIM} is declared lost", 30.0, declared_lost)
    await load.stop()
    await _timeline(fleet, judge, doomed)
    await _judge_placement(fleet, judge, before)
    _judge_requests(judge, load, doomed)


async def _serve_through_each(fleet: DemoFleet, judge: Judge, replicas: list[dict[str, object]]) -> None:
    """Ask the gateway until every replica has answered."""
    wanted = {str(replica["replica_id"]) for replica in replicas}
    answered: set[str] = set()
    # One that has just become ready is spared at first, and gets its share after the routers' slow start.
    deadline = time.monotonic() + SERVED_THROUGH_EACH_S
    async with httpx.AsyncClient(trust_env=False, timeout=30.0) as client:
        while time.monotonic() < deadline:
            for model in sorted({str(replica["model"]) for replica in replicas}):
                request = Request(model, 0.0, stream=True)
                await run_request(client, fleet.api, request, tokens=4)
                if request.outcome == "served" and request.replica:
                    answered.add(request.replica)
            if wanted <= answered:
                break
    missing = wanted - answered
    judge.expect(
        not missing, "a request was served through each replica" + (f"; not {missing}" if missing else "")
    )


async def _timeline(fleet: DemoFleet, judge: Judge, doomed: dict[str, dict[str, object]]) -> None:
    history = list(reversed(await fleet.get("history?limit=500")))
    killed_at = next(
        (item["at"] for item in history if item["event"] == "failed" and item["subject"] in doomed), None
    )
    lost_at = next(
        (item["at"] for item in history if item["subject"] == VICTIM and item["event"] == "lost"), None
    )
    judge.tell("timeline, in seconds after the first failure was seen:")
    if killed_at is None:
        judge.expect(False, "a failure stands in the history")
        return
    for item in history:
        subject_counts = item["kind"] == "replica" and item["event"] in ("failed", "reaped", "ready", "starting")
        if item["at"] >= killed_at and (subject_counts or item["subject"] == VICTIM):
            judge.tell(f"  {item['at'] - killed_at:5.1f}  {item['subject']} {item['event']}: {item['reason']}")
    judge.expect(lost_at is not None, f"{VICTIM} was declared lost")
    reaped = {item["subject"] for item in history if item["event"] == "reaped"}
    judge.expect(set(doomed) <= reaped, "every lost replica was reaped")


async def _judge_placement(fleet: DemoFleet, judge: Judge, before: set[str]) -> None:
    new = [replica for replica in await ready_replicas(fleet) if replica["replica_id"] not in before]
    judge.expect(bool(new), "replacements stand")
    for replica in new:
        fabrics = {fleet.nodes[node][1] for node in replica["nodes"]}
        judge.expect(
            len(fabrics) == 1 and VICTIM not in replica["nodes"],
            f"{replica['replica_id']} is wholly on {', '.join(sorted(fabrics))}: {', '.join(replica['nodes'])}",
        )
    twice = gpus_used_twice(await ready_replicas(fleet))
    judge.expect(not twice, "no GPU is used twice" + (f": {twice}" if twice else ""))


def _judge_requests(judge: Judge, load: Load, doomed: dict[str, dict[str, object]]) -> None:
    failed = load.failed
    elsewhere = [request for request in failed if request.replica not in doomed]
    judge.tell(
        f"requests: {len(load.requests)} sent, {load.counts()['served']} served, {len(failed)} failed, "
        f"of which {len(failed) - len(elsewhere)} were on the dead node"
    )
    for request in elsewhere[:5]:
        judge.tell(f"  {request.model} at {request.replica}: {request.outcome}")
    judge.expect(not elsewhere, "not one request failed that had not been on the dead node")
