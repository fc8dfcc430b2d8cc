"""GPUs: what each is, how it is used, and what is wrong with it. The same of a server and of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from llmgw.messages.agent import THROTTLE_REASONS, XIDS_PER_GPU_MAX, Gpu
from llmgw.metrics.family import Family, LastSample, Sample

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
POWER = Family("llmgw_gpu_power_watts", "gauge", "What a GPU draws now", _LABELS, _BOUND)
POWER_LIMIT = Family("llmgw_gpu_power_limit_watts", "gauge", "What a GPU may draw", _LABELS, _BOUND)
ECC = Family(
    "llmgw_gpu_ecc_errors_total",
    "counter",
    "Memory errors of a GPU since its driver was loaded, by kind: corrected or uncorrected",
    (*_LABELS, "kind"),
    "2 × GPUs, at most 64 a node",
)
XIDS = Family(
    "llmgw_gpu_xid_errors_total",
    "counter",
    "Xid errors of a GPU in the kernel's log since its driver was loaded; absent where it has none, or cannot "
    "be read",
    (*_LABELS, "xid"),
    f"{XIDS_PER_GPU_MAX} × GPUs, at most 64 a node",
)
THROTTLED = Family(
    "llmgw_gpu_throttled",
    "gauge",
    "1 while something holds the clocks of a GPU down: power, thermal or hardware; else 0",
    (*_LABELS, "reason"),
    "3 × GPUs, at most 64 a node",
)
_MIB = 1024 * 1024


def _share(percent: int | None) -> float | None:
    return percent / 100 if percent is not None and 0 <= percent <= 100 else None


_PLAIN: tuple[tuple[Family, Callable[[Gpu], float | None]], ...] = (
    (USABLE, lambda gpu: int(gpu.usable)),
    (MEMORY_USED, lambda gpu: None if gpu.memory_used_mib is None else gpu.memory_used_mib * _MIB),
    (MEMORY_TOTAL, lambda gpu: None if gpu.memory_total_mib is None else gpu.memory_total_mib * _MIB),
    (UTILIZATION, lambda gpu: _share(gpu.utilization_percent)),
    (TEMPERATURE, lambda gpu: gpu.temperature_c),
    (POWER, lambda gpu: gpu.power_w),
    (POWER_LIMIT, lambda gpu: gpu.power_limit_w),
    (NVLINK_PEERS, lambda gpu: None if gpu.nvlink_peers is None else len(gpu.nvlink_peers)),
)
FAMILIES = (INFO, *(family for family, _ in _PLAIN), ECC, XIDS, THROTTLED)


def gpu_text(nodes: Iterable[tuple[str, list[Gpu]]]) -> str:
    """Every family, of nodes by their ids."""
    gpus = [(node_id, str(gpu.index), gpu) for node_id, found in nodes for gpu in found]
    parts = [INFO.text(_info(gpus))]
    for family, read in _PLAIN:
        parts.append(family.text(((node_id, index), read(gpu)) for node_id, index, gpu in gpus))
    parts += [
        ECC.grouped(((node_id, index), _ecc(gpu)) for node_id, index, gpu in gpus),
        XIDS.grouped(((node_id, index), _xids(gpu)) for node_id, index, gpu in gpus),
        THROTTLED.grouped(((node_id, index), _throttled(gpu)) for node_id, index, gpu in gpus),
    ]
    return "".join(parts)


def _ecc(gpu: Gpu) -> list[LastSample]:
    return [("corrected", gpu.corrected_ecc), ("uncorrected", gpu.uncorrected_ecc)]


def _xids(gpu: Gpu) -> list[LastSample]:
    return [(str(code), count) for code, count in sorted((gpu.xids or {}).items())]


def _throttled(gpu: Gpu) -> list[LastSample]:
    held = gpu.throttled
    return [] if held is None else [(reason, int(reason in held)) for reason in THROTTLE_REASONS]


def _info(gpus: Iterable[tuple[str, str, Gpu]]) -> Iterator[Sample]:
    for node_id, index, gpu in gpus:
        yield (node_id, index, gpu.uuid, gpu.name, gpu.driver_version or "unknown"), 1
