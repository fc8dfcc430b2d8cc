"""The fleet that faults are planted in: nine nodes on six fabrics, and a model for each fault that needs one.

A model is bound to a fabric, so that it is known beforehand where it runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from llmgw.config.own_program import own_python
from llmgw.sim.demo_files import write_private
from llmgw.sim.demo_fleet import DemoError, DemoFleet
from llmgw.sim.fabric.change import fabric_path
from llmgw.sim.hardware_files import load_parameters
from llmgw.sim.hardware_nvidia_smi import gpu_uuid

NODES: dict[str, tuple[str, str]] = {
    "node01": ("127.0.0.11", "ib-a"),
    "node02": ("127.0.0.12", "ib-a"),
    "node03": ("127.0.0.13", "ib-b"),
    "node04": ("127.0.0.14", "ib-b"),
    "node05": ("127.0.0.15", "ib-c"),
    "node06": ("127.0.0.16", "ib-d"),
    "node07": ("127.0.0.17", "ib-e"),
    "node08": ("127.0.0.18", "ib-f"),
    "node09": ("127.0.0.19", "ib-a"),
}

OPTIONS: dict[str, Any] = {
    "nodes": NODES,
    "routers": 2,
    "load_s": 0.5,
    "tokens_per_s": 200.0,
    # Shorter than an operator's, so that it is watched and not waited for; what is out stays out.
    "liveness": {
        "lost_after": "6s",
        "stall_after": "4s",
        "stalled_limit": "10m",
        "probe_interval": "4s",
        "probe_timeout": "2s",
        "port_down_suspend": "4s",
        "port_down_fail": "10m",
    },
    "fabrics": {"managers_interval": "3s", "map_interval": "15s"},
}
ANSWERS_S = 30.0


class Site:
    """A demo's fleet, and what planting needs of it."""

    def __init__(self, fleet: DemoFleet) -> None:
        self.fleet = fleet
        self._requests: list[asyncio.Task[None]] = []

    # Files, before anything runs.

    @contextmanager
    def agent_yaml(self, node: str) -> Iterator[dict[str, Any]]:
        """A node's agent.yaml, written back when the block ends."""
        with _edited(self.fleet.folder / node / "agent.yaml") as config:
            yield config

    @contextmanager
    def server_yaml(self) -> Iterator[dict[str, Any]]:
        """The server's configuration, in the same way."""
        with _edited(self.fleet.folder / "server.yaml") as config:
            yield config

    def hardware(self, node: str) -> Path:
        """The folder of a node's simulated hardware."""
        return self.fleet.folder / node / "hardware"

    def gpu(self, node: str, index: int) -> str:
        """A GPU's UUID."""
        return gpu_uuid(load_parameters(self.hardware(node)), index)

    def fabric(self, name: str) -> Path:
        """A fabric's file."""
        return fabric_path(self.fleet.folder, name)

    def stranger(self, name: str, **environ: str) -> int:
        """Start a process that is none of llmgw's, and ends with the fleet; its pid."""
        return self.fleet.start_stranger(name, ["sleep", "600"], environ)

    # The running fleet.

    async def replica(self, model: str) -> dict[str, Any]:
        """The model's first ready replica. Raises DemoError when there is none within ANSWERS_S."""
        deadline = time.monotonic() + ANSWERS_S
        while time.monotonic() < deadline:
            for replica in await self.fleet.get(f"replicas?model={model}"):
                if replica["state"] == "ready":
                    return dict(replica)
            await asyncio.sleep(0.3)
        raise DemoError(f"no replica of {model} is ready")

    def leave_waiting(self, model: str, tokens: int = 8) -> None:
        """Send a request and wait for its answer in the background, for ever if need be."""

        async def wait() -> None:
            body = {
                "model": model,
                "messages": [{"role": "user", "content": "Are you there?"}],
                "max_tokens": tokens,
            }
            async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
                try:
                    await client.post(f"{self.fleet.api}/v1/chat/completions", json=body)
                except httpx.HTTPError:
                    pass  # it was never to be answered

        self._requests.append(asyncio.create_task(wait()))

    def restart_as(self, node: str, version: str) -> None:
        """Start a node's agent again as another version of llmgw, which takes a Python (`is_frozen`)."""
        self.fleet.kill_node(node)
        start = f"import llmgw; llmgw.__version__ = {version!r}; from llmgw.__main__ import main; main()"
        self.fleet.start_agent(node, program=own_python(start))

    async def close(self) -> None:
        """Give up what still waits."""
        for task in self._requests:
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)


def model(
    name: str, fabric: str | None = None, *, limits: dict[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """A catalog entry of one profile, by default one replica of one GPU."""
    profile: dict[str, Any] = {"engine": "sim", "gpus_per_node": 1, "replicas": 1, **keys}
    profile["args"] = ["--load-s", "0.5", "--tokens-per-s", "200", *profile.get("args", [])]
    if fabric is not None:
        profile["fabric"] = fabric
    return {"name": name, "profiles": [profile], **({"limits": limits} if limits else {})}


@contextmanager
def _edited(path: Path) -> Iterator[dict[str, Any]]:
    config = yaml.safe_load(path.read_text())
    yield config
    write_private(path, yaml.safe_dump(config, sort_keys=False))
