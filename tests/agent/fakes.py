"""A test engine's adapter, a fixed inventory, and specs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from llmgw.agent.admission import InventorySource
from llmgw.agent.gpu_memory import GpuMemory
from llmgw.agent.supervisor import Supervisor, real_work_dir
from llmgw.config.agent import AgentConfig
from llmgw.engines.base import HttpCheck, LaunchContext, LaunchPlan, ProcessPlan, inherited_env
from llmgw.engines.figures import FigureNames
from llmgw.engines.probes import with_key
from llmgw.hardware.gpu_processes import GpuProcesses
from llmgw.hardware.gpus import GpuReading
from llmgw.messages.agent import FabricOffer, Gpu, HeldShard, Inventory, ShardSpec

PROGRAM = Path(__file__).with_name("engine_program.py")
GPUS = [Gpu(index=index, uuid=f"GPU-{index}", name="test") for index in range(4)]
IDLE = GpuReading(gpus=GPUS, processes=GpuProcesses(whole=True))


class ProgramAdapter:
    """Runs `engine_program.py` with the spec's args; `sidecar:WORD` among them starts a sidecar."""

    name = "program"
    python = sys.executable
    progress_counters: tuple[str, ...] = ()
    figures = FigureNames()
    takes_key = True

    def offered(self, config: AgentConfig) -> bool:
        return True

    def program(self, config: AgentConfig) -> str:
        return self.python

    def extra_ports(self, spec: ShardSpec, config: AgentConfig) -> int:
        return next((int(word.partition("=")[2]) for word in spec.args if word.startswith("extra-ports=")), 0)

    def problems(self, spec: ShardSpec, context: LaunchContext) -> list[str]:
        return ["the profile asks for the impossible"] if "impossible" in spec.args else []

    def plan(self, spec: ShardSpec, context: LaunchContext) -> LaunchPlan:
        env = {**inherited_env(context.base_env), **spec.env}
        if context.api_key is not None:
            env["PROGRAM_API_KEY"] = context.api_key
        program = [self.python, str(PROGRAM)]
        if "no-such-program" in spec.args:
            program = ["/nonexistent/engine"]
        serving = ["--port", str(context.http_port)] if spec.rank == 0 else []
        words = [word for word in spec.args if not word.startswith("sidecar:")]
        if context.model_path is not None:
            words += ["--model", context.model_path]
        sidecars = [
            ProcessPlan(name="sidecar", argv=[self.python, str(PROGRAM), word.partition(":")[2]], env=env)
            for word in spec.args
            if word.startswith("sidecar:")
        ]
        return LaunchPlan(
            engine=ProcessPlan(name="engine", argv=[*program, *serving, *words], env=env),
            sidecars=sidecars,
            load=HttpCheck(method="GET", path="/health", timeout_s=2) if serving else None,
            readiness=with_key(
                HttpCheck(method="POST", path="/v1/completions", body=b"{}", timeout_s=2), context.api_key
            )
            if serving
            else None,
        )


def find_adapter(name: str) -> ProgramAdapter:
    if name != "program":
        raise ValueError(f"no engine is called {name!r}")
    return ProgramAdapter()


class FixedInventory:
    def __init__(self, inventory: Inventory | None = None) -> None:
        self.inventory = inventory or Inventory(
            gpus=GPUS, fabrics=[FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True)]
        )

    async def latest(self) -> Inventory:
        return self.inventory

    async def fresh(self) -> Inventory:
        return self.inventory


def make_config(work_dir: Path, **supervisor: Any) -> AgentConfig:
    settings = {"health_interval": "50ms", "stop_timeout": "5s", "log_lines": 20, **supervisor}
    return AgentConfig.model_validate(
        {
            "node_id": "node01",
            "server": "https://127.0.0.1:1",
            "mgmt_addr": "127.0.0.1",
            "supervisor": {"work_dir": str(work_dir), **settings},
        }
    )


def make_supervisor(
    config: AgentConfig,
    *,
    inventory: InventorySource | None = None,
    gpu_memory: GpuMemory | None = None,
    **more: Any,
) -> Supervisor:
    return Supervisor(
        config=config,
        address="127.0.0.1",
        adapter=find_adapter,
        inventory=inventory or FixedInventory(),
        gpu_memory=gpu_memory or GpuMemory(lambda: IDLE, work_dir=real_work_dir(config)),
        **more,
    )


def make_spec(shard_id: str = "r1-0", *args: str, **changes: Any) -> ShardSpec:
    fields: dict[str, Any] = {
        "shard_id": shard_id,
        "replica_id": "r1",
        "model": "m",
        "profile": "p",
        "profile_hash": "h",
        "served_names": ["m"],
        "engine": "program",
        "args": list(args),
        **changes,
    }
    return ShardSpec(**fields)


async def held_one(supervisor: Supervisor, shard_id: str = "r1-0") -> HeldShard:
    return next(shard for shard in await supervisor.held() if shard.spec.shard_id == shard_id)
