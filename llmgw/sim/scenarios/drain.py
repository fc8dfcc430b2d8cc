"""drain: a node is emptied under load, and no client notices."""

from __future__ import annotations

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.scenarios.judge import Judge, ready_replicas
from llmgw.sim.scenarios.under_load import expect_nothing_failed, under_load

DRAINED_S_MAX = 90.0


async def drain(fleet: DemoFleet, judge: Judge) -> None:
    """Drain the node of a small replica: its replacement serves before it stops; what cannot move is named."""
    async with under_load(fleet, judge) as load:
        small = (await ready_replicas(fleet, "demo/small"))[0]
        node = small["nodes"][0]
        fewest = fleet.options.replicas_small
        answer = await fleet.post(f"nodes/{node}/drain", {})
        judge.tell(answer["message"])

        async def moved() -> bool:
            nonlocal fewest
            ready = await ready_replicas(fleet, "demo/small")
            fewest = min(fewest, len(ready))
            there = [r for r in await fleet.get("replicas") if node in r["nodes"] and r["model"] == "demo/small"]
            return not there

        if await judge.wait(f"{node} holds no small replica", DRAINED_S_MAX, moved, every_s=0.1):
            judge.tell(f"{node} holds no small replica any more")
        judge.expect(
            fewest == fleet.options.replicas_small, f"never fewer than {fewest} small replicas were ready"
        )
        view = next(item for item in await fleet.get("nodes") if item["node_id"] == node)
        left = [r["replica_id"] for r in await fleet.get("replicas") if node in r["nodes"]]
        named = [*view["drain_left"], *view["drain_waits"]]
        for sentence in named:
            judge.tell(f"  {sentence}")
        judge.expect(
            all(any(replica in sentence for sentence in named) for replica in left),
            "what is left there is named with its reason",
        )
        await fleet.post(f"nodes/{node}/undrain", {})
        judge.tell(f"{node} is undrained")
    expect_nothing_failed(judge, load)
