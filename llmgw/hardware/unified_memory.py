"""GPUs without memory of their own, as on a GB10: theirs is the machine's, and the driver tells no size."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import psutil

from llmgw.messages.agent import Gpu

_MIB = 1024 * 1024


def system_memory_mib() -> tuple[int, int]:
    """(all, in use) of this machine's memory, in MiB."""
    memory = psutil.virtual_memory()
    return memory.total // _MIB, (memory.total - memory.available) // _MIB


def with_memory(gpus: Sequence[Gpu], total_mib: int, used_mib: int) -> list[Gpu]:
    """The same GPUs, those of unified memory with the machine's sizes."""
    return [
        msgspec.structs.replace(gpu, memory_total_mib=total_mib, memory_used_mib=used_mib)
        if gpu.unified_memory
        else gpu
        for gpu in gpus
    ]
