"""What the simulated engine is told: its place, its speeds, and the faults it starts with."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from llmgw.sim.engine_faults import Faults
from llmgw.sim.engine_nccl import NCCL_LOGS, NcclLog, adapters_of


@dataclass(frozen=True, kw_only=True)
class Options:
    """Everything on the command line of `llmgw sim engine`."""

    served_names: list[str]
    host: str = "127.0.0.1"
    port: int = 8000
    gpus: int = 0
    gpu_memory_mib: int = 20480
    rank: int = 0
    nnodes: int = 1
    group: str = ""
    rendezvous_host: str | None = None
    rendezvous_port: int | None = None
    rendezvous_timeout_s: float = 120.0
    load_s: float = 0.0
    fail_load: bool = False
    never_join: bool = False
    """A worker dials nobody and stays; the leader takes no notice of it."""
    nccl_log: NcclLog = "ib"
    """What a rank of several says of its network, and whether its adapters carry anything."""
    answer_tokens: int = 64
    max_model_len: int = 32768
    max_num_seqs: int = 256
    shutdown_timeout_s: float = 0.0
    faults: Faults = field(default_factory=Faults)

    def problem(self) -> str | None:
        """A sentence about options that contradict each other, or None."""
        if not self.served_names and self.rank == 0:
            return "no name to serve; give --served-name"
        if self.nccl_log not in NCCL_LOGS:
            return f"--nccl-log {self.nccl_log} is not known; write {', '.join(NCCL_LOGS)}"
        if not 0 <= self.rank < self.nnodes:
            return f"--rank {self.rank} is not below --nnodes {self.nnodes}; ranks count from 0"
        if self.nnodes > 1 and (self.rendezvous_host is None or not self.rendezvous_port):
            return f"--nnodes {self.nnodes} needs --rendezvous-host and --rendezvous-port, where rank 0 waits"
        return None


@dataclass(frozen=True)
class Surroundings:
    """What the engine reads of its environment."""

    shard: str
    """`LLMGW_SHARD`: who speaks in the answers."""
    gpu_uuids: list[str]
    """`CUDA_VISIBLE_DEVICES`."""
    hardware: str | None
    """`LLMGW_SIM_HARDWARE`: the folder of the simulated node whose GPU memory is taken."""
    adapters: list[str] = field(default_factory=list)
    """`NCCL_IB_HCA`: the fabric's ports."""
    api_key: str | None = field(default=None, repr=False)
    """`LLMGW_SIM_API_KEY`: what requests to `/v1/…` must carry."""


def read_surroundings(environment: dict[str, str] | None = None) -> Surroundings:
    """Read the environment, by default the process's own."""
    env = os.environ if environment is None else environment
    return Surroundings(
        shard=env.get("LLMGW_SHARD") or "no-shard",
        gpu_uuids=[part for part in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if part],
        hardware=env.get("LLMGW_SIM_HARDWARE") or None,
        adapters=adapters_of(env.get("NCCL_IB_HCA", "")),
        api_key=env.get("LLMGW_SIM_API_KEY") or None,
    )
