"""What `llmgw inspect` says of saved output: the agent's own readers, in shapes that are stable for programs."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from llmgw.config.errors import SentenceError
from llmgw.hardware.fabrics import judge_ports, port_doubts
from llmgw.hardware.gpu_processes import parse_gpu_processes
from llmgw.hardware.nvidia_smi import parse_gpus
from llmgw.hardware.ports import read_ports
from llmgw.hardware.topo import parse_topology

SAVED_BYTES_MAX = 16 * 1024 * 1024


_PROCESSES = re.compile(r"^GPU-[0-9A-Za-z-]{8,90}, \d+, \d+", re.MULTILINE)


class GpuRow(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `mig` is True when it is cut into MIG devices; None in any field is unknown."""

    index: int
    uuid: str | None
    name: str
    memory_total_mib: int | None
    memory_used_mib: int | None
    mig: bool | None
    usable: bool
    reason: str | None


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """`problems` is what is no row of its own: `0000:02:00.0 is lost: Unknown Error`."""

    gpus: list[GpuRow]
    problems: list[str]


class TopologyReport(msgspec.Struct, frozen=True, kw_only=True):
    """`nvlink` and `nearest_nics` have the GPUs whose rows were there, by index as text."""

    gpus: int
    nvlink: dict[str, list[int]]
    nearest_nics: dict[str, list[str]]
    problems: list[str]


class PortRow(msgspec.Struct, frozen=True, kw_only=True):
    """One port. `usable`: it could carry a fabric's traffic; else `reason` says why not."""

    adapter: str
    port: int
    link_layer: str | None
    state: str | None
    phys_state: str | None
    rate_gbps: float | None
    usable: bool
    reason: str | None
    counters: dict[str, int | None]


class PortReport(msgspec.Struct, frozen=True, kw_only=True):
    """`problems` is what limits a port that works, and what could not be read."""

    ports: list[PortRow]
    problems: list[str]


def inspect_gpus(text: str) -> GpuReport:
    """Read saved output of nvidia-smi: CSV, the table for people, or `-L`."""
    table = parse_gpus(text)
    rows = [
        GpuRow(
            index=gpu.index,
            uuid=gpu.uuid or None,
            name=gpu.name,
            memory_total_mib=gpu.memory_total_mib,
            memory_used_mib=gpu.memory_used_mib,
            mig=gpu.mig,
            usable=gpu.usable,
            reason=gpu.reason,
        )
        for gpu in table.gpus
    ]
    problems = [finding.what for finding in table.findings]
    if not rows and _PROCESSES.search(text):
        listed = parse_gpu_processes(text, ("gpu_uuid", "pid", "used_memory"))
        unnamed = f", and of {len(listed.unknown)} GPUs not all" if listed.unknown else ""
        problems = [f"this is a list of processes ({len(listed.processes)}{unnamed}), not of GPUs"]
    elif not rows and not problems:
        problems = ["there is nothing to read; save the output of nvidia-smi --query-gpu=… --format=csv"]
    return GpuReport(gpus=rows, problems=problems)


def inspect_topology(text: str) -> TopologyReport:
    """Read saved output of `nvidia-smi topo -m`."""
    found = parse_topology(text)
    nvlink = {str(gpu): peers for gpu in found.gpus if (peers := found.nvlink_peers(gpu)) is not None}
    nearest = {str(gpu): nics for gpu in found.gpus if (nics := found.nearest_nics(gpu)) is not None}
    return TopologyReport(gpus=len(found.gpus), nvlink=nvlink, nearest_nics=nearest, problems=found.problems)


def inspect_ports(root: Path) -> PortReport:
    """Read a tree like /sys/class/infiniband, or one that has it below `class/infiniband`.

    Raises SentenceError when there is no such folder.
    """
    if not root.is_dir():
        what = "is no folder" if root.exists() else "does not exist"
        raise SentenceError(
            f"{root} {what}; name a folder like /sys/class/infiniband, with one folder an adapter"
        )
    below = (root, root / "class" / "infiniband", root / "sys" / "class" / "infiniband")
    ports = next((found for folder in below if (found := read_ports(folder))), [])
    rows = [
        PortRow(
            adapter=port.adapter,
            port=port.port,
            link_layer=port.link_layer,
            state=port.state,
            phys_state=port.phys_state,
            rate_gbps=port.rate_gbps,
            usable=problem is None,
            reason=None if problem is None else f"{problem.what}; {problem.remedy}",
            counters=port.counters,
        )
        for port, problem in judge_ports(ports)
    ]
    problems = port_doubts(ports) if ports else [f"there is no adapter with a port below {root}"]
    return PortReport(ports=rows, problems=problems)


def decode_saved(data: bytes) -> str:
    """The text of a saved file. PowerShell saves as UTF-16; whatever is no text becomes replacement signs."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")
