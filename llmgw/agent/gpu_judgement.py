"""What the memory in use on a GPU means: held by a stranger, left behind by a shard, or free. Pure.

Unknown is never a reason: without a GPU's total, or without a size, nothing is called held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llmgw.agent.gpu_holders import Holder
from llmgw.hardware.gpu_processes import GpuHolders, GpuProcesses
from llmgw.hardware.nvidia_smi_cells import refuse
from llmgw.messages.agent import Gpu
from llmgw.messages.findings import Finding

# What others may hold before a GPU is called taken: a desktop, a monitor, a driver's own accounts. An engine
# that takes 90 % of a GPU still fits beside it.
TOLERATED_SHARE = 0.05
TOLERATED_MIB = 1024
# Less than a bare CUDA context takes on a current GPU, and more than what watches GPUs does.
LEFTOVER_MIB = 256
# The kernel tells when a process began in ticks of 10 ms.
CLOCK_SLACK_S = 0.05
_NAMED_MAX = 3

Identify = Callable[[int], Holder]


@dataclass(frozen=True)
class Leftover:
    """A shard that ended and whose memory did not go with it. `used_before_mib` was in use before it began."""

    shard_id: str
    used_before_mib: int | None


@dataclass
class Judgement:
    """GPUs with what others hold taken into account. `occupied`: UUID → the reason, of GPUs that are whole."""

    gpus: list[Gpu] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    occupied: dict[str, str] = field(default_factory=dict)


def tolerated_mib(gpu: Gpu) -> float | None:
    """What others may hold of this GPU; None where its total is unknown."""
    if gpu.memory_total_mib is None:
        return None
    return max(TOLERATED_MIB, gpu.memory_total_mib * TOLERATED_SHARE)


def judge_gpus(
    gpus: Sequence[Gpu],
    processes: GpuProcesses,
    *,
    claims: Mapping[str, str],
    leftovers: Mapping[str, Leftover],
    identify: Identify,
) -> Judgement:
    """Take GPUs that others hold out of use. `claims`: UUID → the live shard that has the GPU."""
    judgement = Judgement()
    for gpu in gpus:
        holders = processes.of(gpu.uuid)
        reason = None
        if gpu.usable:
            claim = claims.get(gpu.uuid)
            if claim is not None:
                judgement.findings += _beside(gpu, holders, claim, identify)
            else:
                reason = why_occupied(gpu, holders, leftovers.get(gpu.uuid), identify)
        if reason is not None:
            judgement.occupied[gpu.uuid] = reason
            judgement.findings.append(_taken(gpu, holders, reason))
            gpu = refuse(gpu, reason, "held")
        judgement.gpus.append(gpu)
    return judgement


def why_occupied(gpu: Gpu, holders: GpuHolders, leftover: Leftover | None, identify: Identify) -> str | None:
    """Why a GPU without a shard of ours cannot be used, or None."""
    limit = tolerated_mib(gpu)
    if limit is None:
        return None
    listed = sum(one.used_mib or 0 for one in holders.processes)
    sizes_known = all(one.used_mib is not None for one in holders.processes)
    held = listed
    if not sizes_known and gpu.memory_used_mib is not None and not gpu.unified_memory:
        # All of it is theirs: nothing of ours is on this GPU.
        held = max(listed, gpu.memory_used_mib)
    if holders.processes and held > limit:
        return f"its memory is held by {name_holders(holders, identify)}{_of_shard(leftover)}"
    unaccounted = _unaccounted_mib(gpu, holders)
    before = leftover.used_before_mib if leftover is not None else None
    if unaccounted is None or before is None or unaccounted - before <= limit:
        return None
    return f"{unaccounted} MiB of its memory are in use{_of_shard(leftover)}, and no process is named for them"


def why_not_released(
    gpu: Gpu, holders: GpuHolders, *, shard_began_boot_s: float, used_before_mib: int | None, identify: Identify
) -> str | None:
    """What still holds memory of a GPU whose shard's processes have ended, as a sentence's end; or None.

    A process that began after the shard did may be an escaped child of it, and is waited for; one that began
    before is a stranger. Memory that no process accounts for is compared with what was in use before.
    """
    suspects = tuple(
        one
        for one in holders.processes
        if (one.used_mib is None or one.used_mib >= LEFTOVER_MIB)
        and ((began := identify(one.pid).began_boot_s) is None or began + CLOCK_SLACK_S >= shard_began_boot_s)
    )
    if suspects:
        return f"GPU {gpu.index} is held by {name_holders(GpuHolders(suspects), identify)}"
    limit, unaccounted = tolerated_mib(gpu), _unaccounted_mib(gpu, holders)
    if limit is None or unaccounted is None or used_before_mib is None or unaccounted - used_before_mib <= limit:
        return None
    return f"GPU {gpu.index} has {unaccounted} MiB in use, {used_before_mib} before the shard began"


def is_known(gpu: Gpu, holders: GpuHolders) -> bool:
    """True when it can be told what is in use on this GPU."""
    return holders.complete or (gpu.memory_used_mib is not None and not gpu.unified_memory)


def name_holders(holders: GpuHolders, identify: Identify) -> str:
    """`process 4711 (python train.py) with 20480 MiB, …`, the largest first."""
    ordered = sorted(holders.processes, key=lambda one: (-(one.used_mib or 0), one.pid))
    names = []
    for one in ordered[:_NAMED_MAX]:
        holder = identify(one.pid)
        ours = f", of shard {holder.shard_id}" if holder.shard_id is not None else ""
        size = "an unknown amount" if one.used_mib is None else f"{one.used_mib} MiB"
        names.append(f"process {one.pid} ({holder.command}{ours}) with {size}")
    more = len(ordered) - _NAMED_MAX
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _unaccounted_mib(gpu: Gpu, holders: GpuHolders) -> int | None:
    """Memory in use that no listed process has; None when that cannot be told, as of memory that is the
    machine's, of which programs that use no GPU hold most.
    """
    if (
        gpu.unified_memory
        or gpu.memory_used_mib is None
        or any(one.used_mib is None for one in holders.processes)
    ):
        return None
    return max(0, gpu.memory_used_mib - sum(one.used_mib or 0 for one in holders.processes))


def _of_shard(leftover: Leftover | None) -> str:
    return f" since shard {leftover.shard_id} ended" if leftover is not None else ""


def _beside(gpu: Gpu, holders: GpuHolders, claim: str, identify: Identify) -> list[Finding]:
    """A finding when a stranger holds memory beside our shard. Who cannot be seen may be ours."""
    strangers = tuple(
        one
        for one in holders.processes
        if (holder := identify(one.pid)).began_boot_s is not None and holder.shard_id != claim
    )
    held = sum(one.used_mib or 0 for one in strangers)
    if held <= (tolerated_mib(gpu) or TOLERATED_MIB):
        return []
    return [
        Finding(
            check="gpu-shared",
            severity="warning",
            where=f"GPU {gpu.index}",
            what=f"beside shard {claim}, its memory is held by {name_holders(GpuHolders(strangers), identify)}",
            why="The engine may run out of memory, and the GPU is not free when the shard ends",
            remedy=_remedy(gpu, strangers[0].pid),
        )
    ]


def _taken(gpu: Gpu, holders: GpuHolders, reason: str) -> Finding:
    largest = max(holders.processes, key=lambda one: one.used_mib or 0, default=None)
    if largest is not None:
        remedy = _remedy(gpu, largest.pid)
    else:
        remedy = f"look for processes in containers and VMs, then reset the GPU (nvidia-smi -i {gpu.index} -r)"
    return Finding(
        check="gpu-taken",
        severity="warning",
        where=f"GPU {gpu.index}",
        what=f"GPU {gpu.index} is not offered: {reason}",
        why="It takes no new shard until that memory is free; llmgw ends no process that is not its own",
        remedy=remedy,
    )


def _remedy(gpu: Gpu, pid: int) -> str:
    return (
        f"look at it (ps -fp {pid}) and end it, or leave the GPU to it: name {gpu.index} in discovery.skip_gpus "
        "of agent.yaml"
    )
