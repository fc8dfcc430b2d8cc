"""gateway-chaos: constant load while engines, routers and the control plane are broken in every way, one by one.

What must hold is in docs/gateway.md under "What may break without a client noticing".
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from llmgw.sim.chaos_load import ChaosLoad
from llmgw.sim.demo_fleet import DemoFleet, signal_all
from llmgw.sim.engine_switch import switch
from llmgw.sim.scenarios.chaos_verdict import OutcomeCounts, judge_chaos
from llmgw.sim.scenarios.judge import SETTLE_S, Judge, ready_replicas, wait_all_ready

FIRST_BYTE_TIMEOUT_S = 3.0
CHUNK_TIMEOUT_S = 4.0
ROUTERS = 2
REPLICAS = 4
OPTIONS: dict[str, Any] = {
    "load_s": 1.0,
    "replicas_small": REPLICAS,
    "first_byte_timeout": f"{FIRST_BYTE_TIMEOUT_S:g}s",
    "chunk_timeout": f"{CHUNK_TIMEOUT_S:g}s",
    "routers": ROUTERS,
}
"""Deadlines shorter than an operator's, so that the scenario is watched and not waited for."""

MODEL = "demo/small"
CLIENTS = {"demo/small": 16, "demo/big": 4}
FAULT_S = 3.0
"""How long each fault lasts under load: many times a request, and longer than it takes a breaker to open."""


async def gateway_chaos(fleet: DemoFleet, judge: Judge) -> None:
    """Break everything that a request passes, one after the other, and account for every single request."""
    judge.tell("waiting for the fleet")
    if not await wait_all_ready(fleet, judge):
        return
    load = ChaosLoad(fleet.api, CLIENTS)
    chaos = _Chaos(fleet, judge, load)
    await chaos.counts.begin(fleet)
    load.start()
    judge.restart_clock()
    judge.tell(
        f"{sum(CLIENTS.values())} clients ask without a pause; {ROUTERS} routers, {REPLICAS} engines of {MODEL}"
    )
    try:
        await chaos.go_on()
        await chaos.kill_engine()
        await chaos.stall()
        await chaos.faults("slow", tokens_per_s=5, slow_first_token_s=1)
        await chaos.faults("answers 500", error_rate=1)
        await chaos.faults("resets in mid-header", reset_rate=1)
        await chaos.faults("resets in mid-stream", reset_after_tokens=5)
        await chaos.replace_routers()
        await chaos.kill_control_plane()
        await chaos.everything_at_once()
    finally:
        await load.stop()
    await chaos.counts.end(fleet, load)
    judge_chaos(fleet, judge, load, chaos.counts, chaos.killed)


class _Chaos:
    """The faults. Each waits until the model has all its engines again, so that a request meets one at a time."""

    def __init__(self, fleet: DemoFleet, judge: Judge, load: ChaosLoad) -> None:
        self._fleet = fleet
        self._judge = judge
        self._load = load
        self._last = ""
        self.counts = OutcomeCounts()
        self.killed: set[str] = set()
        """Shards that were killed."""

    async def go_on(self, seconds: float = FAULT_S) -> None:
        """Let load run, and see that it is served."""
        before = self._load.fates()["served"]
        await asyncio.sleep(seconds)

        async def served() -> bool:
            return self._load.fates()["served"] > before

        await self._judge.wait("requests are served", 10.0, served)

    async def kill_engine(self) -> None:
        async with self._step("engine killed (SIGKILL)"):
            await self._kill(await self._victim())
            await self.go_on()
        await self._all_ready()

    async def stall(self) -> None:
        """Longer than both deadlines: requests without a byte go elsewhere, streams end with an error event."""
        victim = await self._victim()
        pid = victim["shards"][0]["engine_pid"]
        async with self._step("engine stalled (SIGSTOP), then going on"):
            signal_all([pid], signal.SIGSTOP)
            try:
                await self.go_on(max(FIRST_BYTE_TIMEOUT_S, CHUNK_TIMEOUT_S) + 2.0)
            finally:
                signal_all([pid], signal.SIGCONT)
            await self.go_on(1.0)

    async def faults(self, what: str, **faults: float) -> None:
        """One engine is told to fail in this way for a while."""
        victim = await self._victim()
        async with self._step(f"engine {what}"):
            await _change_faults(victim, faults)
            await self.go_on()
            await _change_faults(victim, None)
            await self.go_on(1.0)

    async def replace_routers(self) -> None:
        """One router after the other is told to end; each has a successor before the next."""
        async with self._step("routers replaced, one after the other"):
            for old in self._fleet.routers():
                os.kill(old, signal.SIGTERM)

                async def replaced(old: int = old) -> bool:
                    now = self._fleet.routers()
                    return old not in now and len(now) == ROUTERS

                await self._judge.wait(f"router {old} is replaced", 20.0, replaced)
            await self.go_on(1.0)

    async def kill_control_plane(self) -> None:
        """It dies, an engine dies while it is gone, and it comes back."""
        victim = await self._victim()
        async with self._step("control plane killed, an engine killed meanwhile"):
            await self.counts.before_kill(self._fleet)
            self._fleet.kill_server()
            self.counts.killed()
            await self.go_on(2.0)
            await self._kill(victim)
            await self.go_on()
            self._fleet.start_server(settle_s=SETTLE_S)
            await self._fleet.wait_for_admin()
        await self._all_ready()

    async def everything_at_once(self) -> None:
        """Three of four engines are broken, each in its own way; one is well. Invariant 8 draws the line here."""
        broken = (await ready_replicas(self._fleet, MODEL))[: REPLICAS - 1]
        async with self._step(f"{len(broken)} of {REPLICAS} engines broken at once"):
            await _change_faults(broken[0], {"reset_rate": 0.5})
            await _change_faults(broken[1], {"error_rate": 0.2, "reset_after_tokens": 12})
            await self._kill(broken[2])
            await self.go_on()
            for victim in broken[:2]:
                await _change_faults(victim, None)
            await self.go_on(1.0)
        await self._all_ready()

    # How.

    @asynccontextmanager
    async def _step(self, what: str) -> AsyncIterator[None]:
        """A line for what is broken, and one for what became of the requests meanwhile."""
        before = self._load.fates()
        self._judge.tell(what)
        yield
        fates = self._load.fates() - before
        del fates["running"]
        self._judge.tell(
            "  " + (", ".join(f"{count} {fate}" for fate, count in sorted(fates.items())) or "nothing")
        )

    async def _victim(self) -> dict[str, Any]:
        """The busiest engine, and not the last victim again."""
        others = [one for one in await ready_replicas(self._fleet, MODEL) if one["replica_id"] != self._last]
        victim = max(others, key=lambda one: int(one["in_flight"]))
        self._last = str(victim["replica_id"])
        return victim

    async def _kill(self, replica: dict[str, Any]) -> None:
        for shard in replica["shards"]:
            self.killed.add(shard["shard_id"])
            os.kill(shard["engine_pid"], signal.SIGKILL)

    async def _all_ready(self) -> None:
        await wait_all_ready(self._fleet, self._judge)


async def _change_faults(replica: dict[str, Any], faults: dict[str, Any] | None) -> None:
    """Have an engine fail in these ways; None: as it was started."""
    await asyncio.to_thread(switch, str(replica["endpoint"]), faults)
