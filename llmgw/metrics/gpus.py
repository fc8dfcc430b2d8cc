"""GPUs: what each is, how it is used, and what is wrong with it. The same of a server and of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from llmgw.messages.agent import Gpu
from llmgw.metrics.family import Family, Sample

_BOUND = "GPUs, at most 64 a node"
_LABELS = ("node", "gpu")

INFO = Family(
    "llmgw_gpu_info",
    "gauge",
    "What a GPU is; always 1. The label gpu of this and of the others is its index",
    ("node", "gpu", "uuid", "name", "driver"),
    _BOUND,
)
USABLE = Family("llmgw_gpu_usable", "gauge", "1 while a GPU may be given work, else 0", _LABELS, _BOUND)
MEMORY_USED = Family("llmgw_gpu_memory_used_bytes", "gauge", "Memory of a GPU that is in use", _LABELS, _BOUND)
MEMORY_TOTAL = Family("llmgw_gpu_memory_total_bytes", "gauge", "Memory that a GPU has", _LABELS, _BOUND)
UTILIZATION = Family(
    "llmgw_gpu_utilization_ratio",
    "gauge",
    "Share of the last moments in which a GPU computed; 1 is always",
    _LABELS,
    _BOUND,
)
TEMPERATURE = Family("llmgw_gpu_temperature_celsius", "gauge", "Temperature of a GPU", _LABELS, _BOUND)
NVLINK_PEERS = Family(
    "llmgw_gpu_nvlink_peers",
    "gauge",
    "GPUs of its node that a GPU has NVLinks with; absent where it is not known",
    _LABELS,
    _BOUND,
)
_MIB = 1024 * 1024
_PLAIN: tuple[tuple[Family, Callable[[Gpu], float | None]], ...] = (
    (USABLE, lambda gpu: int(gpu.usable)),
    (MEMORY_USED, lambda gpu: None if gpu.memory_used_mib is None else gpu.memory_used_mib * _MIB),
    (MEMORY_TOTAL, lambda gpu: None if gpu.memory_total_mib is None else gpu.memory_total_mib * _MIB),
    (UTILIZATION, lambda gpu: None if gpu.utilization_percent is None else gpu.utilization_percent / 100),
    (TEMPERATURE, lambda gpu: gpu.temperature_c),
    (NVLINK_PEERS, lambda gpu: None if gpu.nvlink_peers is None else len(gpu.nvlink_peers)),
)
FAMILIES = (INFO, *(family for family, _ in _PLAIN))


def gpu_text(nodes: Iterable[tuple[str, list[Gpu]]]) -> str:
    """Every family, of nodes by their ids."""
    gpus = [(node_id, str(gpu.index), gpu) for node_id, found in nodes for gpu in found]
    parts = [INFO.text(_info(gpus))]
    for family, read in _PLAIN:
        parts.append(family.text(((node_id, index), read(gpu)) for node_id, index, gpu in gpus))
    return "".join(parts)


def _info(gpus: Iterable[tuple[str, str, Gpu]]) -> Iterator[Sample]:
    for node_id, index, gpu in gpus:
        yield (node_id, index, gpu.uuid, gpu.name, gpu.driver_version or "unknown"), 1
