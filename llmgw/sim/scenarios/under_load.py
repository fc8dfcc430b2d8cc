"""What most scenarios share: a ready fleet, clients that stream from it, and the count at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.load import Load, Request
from llmgw.sim.scenarios.judge import Judge, wait_all_ready

WARM_UP_REQUESTS = 12


class NotReady(Exception):
    """The fleet did not come up; the judge has said so."""


@asynccontextmanager
async def under_load(fleet: DemoFleet, judge: Judge, *, clients: int = 3) -> AsyncIterator[Load]:
    """Wait until everything is ready and load runs; afterwards end the load and tell its counts."""
    judge.tell("waiting for the fleet")
    if not await wait_all_ready(fleet, judge):
        raise NotReady
    load = Load(fleet.api, ["demo/big", "demo/small"], clients=clients)
    load.start()
    try:
        await served_more(load, judge, WARM_UP_REQUESTS, "load is served")
        judge.restart_clock()
        yield load
    finally:
        await load.stop()
        retried = await fleet.metric("llmgw_retries_total")
        judge.facts["requests"] = {
            "sent": len(load.requests),
            "served": load.counts()["served"],
            "failed": len(load.failed),
            "retried": int(retried),
        }
        judge.tell(
            f"requests: {len(load.requests)} sent, {load.counts()['served']} served, {retried:.0f} retried, "
            f"{len(load.failed)} failed"
        )


async def served_more(load: Load, judge: Judge, count: int, what: str, limit_s: float = 30.0) -> bool:
    """Wait until `count` more requests were served."""
    before = load.counts()["served"]

    async def more() -> bool:
        return load.counts()["served"] >= before + count

    return await judge.wait(what, limit_s, more)


def expect_nothing_failed(judge: Judge, load: Load) -> None:
    """Not one request may have failed."""
    _tell_failures(judge, load.failed)
    judge.expect(not load.failed, "no request failed and no stream was broken")


def expect_failed_only_on(judge: Judge, load: Load, replicas: set[str]) -> None:
    """Only requests that these replicas had may have failed."""
    elsewhere = [request for request in load.failed if request.replica not in replicas]
    _tell_failures(judge, elsewhere)
    judge.expect(not elsewhere, f"no request failed that was not on {', '.join(sorted(replicas))}")


def _tell_failures(judge: Judge, failed: list[Request]) -> None:
    for request in failed[:5]:
        judge.tell(f"  {request.model} at {request.replica}: {request.outcome}")


async def settle_down(seconds: float = 1.0) -> None:
    """Let a wrong decision show, had one been taken."""
    await asyncio.sleep(seconds)
