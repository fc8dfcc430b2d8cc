"""Runs one seed: ten simulated minutes of faults and recovery, and what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field

import structlog

from tests.simulation.faults import Faults
from tests.simulation.plan import RUN_S, plan_of
from tests.simulation.rest import unrest
from tests.simulation.trace import Trace
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import World

REST_LOOK_S = 1.0
REST_STAYS_S = 15.0
ERRORS = logging.ERROR


@dataclass
class Outcome:
    """What a seed showed."""

    seed: int
    problem: str | None
    simulated_s: float
    nodes: int
    converged_after_s: float | None
    """From the last fault to the desired state."""
    bound_s: float
    lines: int
    digest: str
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    served: int = 0
    trace: list[str] = field(default_factory=list)


def run_seed(seed: int, *, whole_trace: bool = False) -> Outcome:
    """Run a seed to its end, or to the first thing that must not be."""
    plan = plan_of(seed)
    loop = VirtualLoop()
    trace = Trace(loop.time, whole=whole_trace)
    asyncio.set_event_loop(loop)
    worlds: list[World] = []

    def heard(_logger: object, method: str, event: dict[str, object]) -> dict[str, object]:
        if worlds and method in ("error", "exception", "critical"):
            worlds[0].invariants.logged(_logger, method, dict(event))
        raise structlog.DropEvent

    structlog.configure(
        processors=[heard],
        wrapper_class=structlog.make_filtering_bound_logger(ERRORS),
        cache_logger_on_first_use=False,
    )
    try:
        return loop.run_until_complete(_run(World(plan, loop, trace), worlds))
    finally:
        structlog.reset_defaults()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()
        for world in worlds:
            world.server.disk.close()


async def _run(world: World, worlds: list[World]) -> Outcome:
    worlds.append(world)
    plan = world.plan
    faults = world.faults = Faults(world)
    world.begin()
    world.spawn(faults.run())
    seen_at: float | None = None
    last = "the faults are not over"
    mended_at: float | None = None
    problem: str | None = None
    while not world.ended.is_set():
        try:
            async with asyncio.timeout(REST_LOOK_S):
                await world.ended.wait()
        except TimeoutError:
            pass
        now = world.now
        if world.loop.unhandled:
            problem = f"a task raised: {world.loop.unhandled[0]}"
            break
        if not faults.over:
            continue
        if mended_at is None:
            mended_at = now
        reason = unrest(world)
        if reason is not None:
            if reason != last:
                world.trace.say("rest", f"not yet: {reason}")
            last = reason
            seen_at = None
            if now - mended_at > plan.bound_s:
                problem = f"no rest {plan.bound_s:.0f} s after the last fault: {reason}"
                break
        elif seen_at is None:
            world.trace.say("rest", "reached")
            seen_at = now
        elif now - seen_at >= REST_STAYS_S and now >= RUN_S:
            break
    problem = problem or next(iter(world.invariants.violations), None)
    world.trace.say("end", problem or "well")
    return Outcome(
        seed=plan.seed,
        problem=problem,
        simulated_s=world.now,
        nodes=len(plan.machines),
        converged_after_s=seen_at - mended_at if seen_at is not None and mended_at is not None else None,
        bound_s=plan.bound_s,
        lines=world.trace.count,
        digest=world.trace.digest,
        faults=world.trace.faults,
        checks=world.invariants.checks,
        served=world.router.served,
        trace=list(world.trace.lines),
    )
