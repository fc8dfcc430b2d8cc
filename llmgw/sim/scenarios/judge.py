"""Prints a scenario's timeline and remembers what did not hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil

from llmgw.sim.demo_fleet import DemoFleet

SETTLE_S = 30.0
"""How long a server that is started again waits for the nodes that it knows, at most: the last ends it. On
a busy machine they take more than the two seconds of a first start, and what was not heard is not adopted."""


class Judge:
    """What a scenario says as it goes. `failures` decides the exit code."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._zero = time.monotonic()
        self.failures: list[str] = []
        self.facts: dict[str, Any] = {}

    def restart_clock(self) -> None:
        """From now on, times in the timeline count from here."""
        self._zero = time.monotonic()

    def tell(self, sentence: str) -> None:
        """A line of the timeline."""
        self._say(f"{time.monotonic() - self._zero:7.1f} s  {sentence}")

    def expect(self, holds: bool, sentence: str) -> None:
        """A claim that must hold for the scenario to pass."""
        self._say(f"  {'ok  ' if holds else 'FAIL'}     {sentence}")
        if not holds:
            self.failures.append(sentence)

    async def wait(
        self, what: str, limit_s: float, holds: Callable[[], Awaitable[bool]], every_s: float = 0.2
    ) -> bool:
        """Wait until `holds`; False, and a failure, when `limit_s` is over first."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if await holds():
                return True
            await asyncio.sleep(every_s)
        self.expect(False, f"{what} within {limit_s:.0f} s")
        return False


async def wait_all_ready(fleet: DemoFleet, judge: Judge, limit_s: float = 60.0) -> bool:
    """Wait until every profile has as many ready replicas as are wanted."""

    async def ready() -> bool:
        models = await fleet.get("models")
        profiles = [profile for model in models for profile in model["profiles"]]
        return bool(profiles) and all(profile["ready"] >= profile["wanted"] for profile in profiles)

    return await judge.wait("every replica is ready", limit_s, ready)


async def ready_replicas(fleet: DemoFleet, model: str | None = None) -> list[dict[str, Any]]:
    """Ready replicas (of one model), as the admin API shows them."""
    replicas: list[dict[str, Any]] = await fleet.get("replicas")
    return [item for item in replicas if item["state"] == "ready" and model in (None, item["model"])]


def gpus_used_twice(replicas: list[dict[str, Any]]) -> list[str]:
    """GPUs that two shards name, as `node02 GPU 3`."""
    seen: set[tuple[str, int]] = set()
    twice = []
    for replica in replicas:
        for shard in replica["shards"]:
            for gpu in shard["gpus"]:
                if (shard["node"], gpu) in seen:
                    twice.append(f"{shard['node']} GPU {gpu}")
                seen.add((shard["node"], gpu))
    return twice


def listening_shards(replicas: list[dict[str, Any]]) -> dict[str, bool]:
    """Shard id → whether its engine's process listens on any port, as the kernel says."""
    return {
        shard["shard_id"]: any(
            connection.status == psutil.CONN_LISTEN
            for connection in psutil.Process(shard["engine_pid"]).net_connections("tcp")
        )
        for replica in replicas
        for shard in replica["shards"]
    }
