"""Which machine a tree of adapters belongs to, and whether it lets programs use them: limits, device files,
GPUDirect. Files below a root that is a parameter; what is not there is no fact.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from llmgw.hardware.sysfs import list_names, read_text
from llmgw.messages.agent import Gpu, Port
from llmgw.messages.findings import Finding

# A queue pair and its buffers take some MiB, registered weights and caches many GiB.
MEMLOCK_ERROR_BYTES = 1024**3
MEMLOCK_WARN_BYTES = 16 * 1024**3
OPEN_FILES_LEAST = 65_535
_PEER_MEMORY_MODULES = ("nvidia_peermem", "nv_peer_mem")
# dma-buf of RDMA (CONFIG_DMABUF in ib_core) came with Linux 5.12; NVIDIA's closed modules do not export it.
_DMABUF_KERNEL = (5, 12)
_TCP = "NCCL then uses TCP without a word, at a fraction of the speed"

Limits = dict[str, tuple[int | None, int | None]]
"""A limit's name as in /proc/PID/limits → (soft, hard); None is unlimited."""


def machine_root(ib_root: Path) -> Path | None:
    """The root of the machine whose adapters are below `ib_root`: `/` for /sys/class/infiniband, the folder of
    simulated hardware, or None for a saved tree, which says nothing of the machine that it was saved on.
    """
    if ib_root.parts[-3:] == ("sys", "class", "infiniband"):
        return ib_root.parents[2]
    return ib_root.parent if (ib_root.parent / "proc" / "self").is_dir() else None


def rdma_findings(
    root: Path | None, ports: Sequence[Port], gpus: Sequence[Gpu], *, limits: Limits | None = None
) -> list[Finding]:
    """What keeps engines on this machine from using its adapters. `limits` are those that engines inherit (None:
    this process's). Nothing on a machine without adapters.
    """
    if root is None or not ports:
        return []
    findings = [*_judge_limits(limits if limits is not None else limits_of(root)), *_devices(root)]
    if gpus:
        findings += _gpudirect(root)
    return findings


def limits_of(root: Path, pid: int | None = None) -> Limits:
    """The limits of a process (None: this one); empty when they cannot be read.

    Format: /proc/PID/limits, proc(5).
    """
    text = read_text(root / "proc" / (str(pid) if pid is not None else "self") / "limits") or ""
    limits: Limits = {}
    for line in text.splitlines():
        match = re.match(r"(Max [a-z ]+?) {2,}(\d+|unlimited) +(\d+|unlimited)", line)
        if match:
            soft, hard = (None if word == "unlimited" else int(word) for word in match.groups()[1:])
            limits[match[1]] = (soft, hard)
    return limits


def _judge_limits(limits: Limits) -> list[Finding]:
    findings: list[Finding] = []
    locked, _ = limits.get("Max locked memory", (None, None))
    if locked is not None and locked < MEMLOCK_WARN_BYTES:
        size = f"{locked // 1024} KiB" if locked < 1024**2 else f"{locked // 1024**2} MiB"
        findings.append(
            Finding(
                check="memlock",
                severity="error" if locked < MEMLOCK_ERROR_BYTES else "warning",
                where="limits",
                what=f"engines may lock {size} of memory",
                why=f"An adapter reads and writes locked memory only. {_TCP}",
                remedy="set LimitMEMLOCK=infinity in the agent's unit (systemctl edit llmgw-agent), and restart "
                "it; in a container: --ulimit memlock=-1",
            )
        )
    _, files = limits.get("Max open files", (None, None))
    if files is not None and files < OPEN_FILES_LEAST:
        findings.append(
            Finding(
                check="open-files",
                severity="warning",
                where="limits",
                what=f"engines may open {files} files",
                why="Each connection, each rank and each adapter's queue takes some; engines fail under load",
                remedy="set LimitNOFILE=1048576 in the agent's unit (systemctl edit llmgw-agent), and restart it",
            )
        )
    return findings


def _devices(root: Path) -> list[Finding]:
    folder = root / "dev" / "infiniband"
    verbs = [name for name in list_names(folder) if re.fullmatch(r"uverbs\d+", name)]
    if not verbs:
        return [
            Finding(
                check="rdma-devices",
                severity="error",
                where="/dev/infiniband",
                what="there is no /dev/infiniband/uverbs0, though there are adapters",
                why=f"Programs reach an adapter through it. {_TCP}",
                remedy="modprobe ib_uverbs; in a container: --device=/dev/infiniband",
            )
        ]
    shut = [name for name in verbs if not os.access(folder / name, os.R_OK | os.W_OK)]
    if not shut:
        return []
    return [
        Finding(
            check="rdma-access",
            severity="error",
            where="/dev/infiniband",
            what=f"this user may not open {', '.join(f'/dev/infiniband/{name}' for name in shut[:8])}",
            why=f"Programs reach an adapter through it. {_TCP}",
            remedy="chmod 666 /dev/infiniband/uverbs*, and keep it with a udev rule (rdma-core brings one); in a "
            "container: --device=/dev/infiniband",
        )
    ]


def _gpudirect(root: Path) -> list[Finding]:
    if any((root / "sys" / "module" / module).is_dir() for module in _PEER_MEMORY_MODULES):
        return []
    driver = read_text(root / "proc" / "driver" / "nvidia" / "version")
    kernel = read_text(root / "proc" / "sys" / "kernel" / "osrelease") or ""
    version = re.match(r"(\d+)\.(\d+)", kernel)
    if driver is None or version is None:
        return []  # without a driver that is said already
    if "Open Kernel Module" in driver and (int(version[1]), int(version[2])) >= _DMABUF_KERNEL:
        return []
    cause = "with this kernel" if "Open Kernel Module" in driver else "with NVIDIA's closed kernel modules"
    return [
        Finding(
            check="gpudirect",
            severity="warning",
            where="GPUDirect RDMA",
            what=f"nvidia_peermem is not loaded, and there is no dma-buf {cause}",
            why="Every byte between GPU and adapter goes through the host's memory",
            remedy="modprobe nvidia_peermem, and name it in /etc/modules-load.d; or install the open modules",
        )
    ]
