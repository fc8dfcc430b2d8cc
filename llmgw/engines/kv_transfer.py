"""The fabric's adapters for what moves KV caches between nodes: UCX (below NIXL) and Mooncake, which read none of
NCCL's variables and would otherwise take whatever adapter they find first.

Pure. Variables: UCX_NET_DEVICES and UCX_IB_GID_INDEX of `ucx_info -f` (openucx.readthedocs.io); MC_* of
mooncake-transfer-engine's config.cpp, and the file of MC_CUSTOM_TOPO_JSON as its topology.cpp parses it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from llmgw.engines.base import PlanFile
from llmgw.messages.agent import Gpu

# Of every node its own: a copy from the leader would be wrong on the others.
OF_EACH_NODE = ("UCX_NET_DEVICES", "UCX_IB_GID_INDEX", "MC_GID_INDEX", "MC_IB_PORT", "MC_CUSTOM_TOPO_JSON")
_FILE = "mooncake-topology.json"


def transfer_env(
    adapters: Sequence[str], ucx_adapters: Sequence[str], gid_index: int | None, work_dir: str
) -> dict[str, str]:
    """The variables for these ports (`mlx5_0:1`), of which UCX gets `ucx_adapters`.

    `gid_index` is the one index that is right for all of them on RoCE; None leaves the choice to the libraries.
    """
    env = {"UCX_NET_DEVICES": ",".join(ucx_adapters), "MC_CUSTOM_TOPO_JSON": f"{work_dir}/{_FILE}"}
    numbers = {adapter.partition(":")[2] for adapter in adapters}
    if len(numbers) == 1:
        # One number for all adapters, 1 unless it is said. With several Mooncake keeps to port 1.
        env["MC_IB_PORT"] = numbers.pop()
    if gid_index is not None:
        env |= {"UCX_IB_GID_INDEX": str(gid_index), "MC_GID_INDEX": str(gid_index)}
    return env


def transfer_file(adapters: Sequence[str], gpus: Sequence[Gpu], work_dir: str) -> PlanFile:
    """Mooncake's map: which adapters each of the shard's GPUs uses first, and which it may use."""
    return PlanFile(path=f"{work_dir}/{_FILE}", content=json.dumps(near_and_far(adapters, gpus)) + "\n")


def near_and_far(adapters: Sequence[str], gpus: Sequence[Gpu]) -> dict[str, list[list[str]]]:
    """`cuda:0` (the first of the shard's GPUs, as its processes count them) → [adapters next to it, the others];
    `cpu:0` → the same for the memory of a NUMA node: adapters next to its GPUs come first.

    Where nobody knows what is near, all are.
    """
    names = list(dict.fromkeys(adapter.partition(":")[0] for adapter in adapters))
    near = [[name for name in gpu.nearest_adapters or [] if name in names] for gpu in gpus]
    found = {f"cuda:{index}": _parted(names, wanted) for index, wanted in enumerate(near)}
    for node in sorted({gpu.numa_node or 0 for gpu in gpus} or {0}):
        here = [
            name
            for gpu, wanted in zip(gpus, near, strict=True)
            if (gpu.numa_node or 0) == node
            for name in wanted
        ]
        found[f"cpu:{node}"] = _parted(names, here)
    return found


def _parted(names: Sequence[str], near: Sequence[str]) -> list[list[str]]:
    first = [name for name in names if name in near] or list(names)
    return [first, [name for name in names if name not in first]]
