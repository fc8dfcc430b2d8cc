"""Which processes hold GPU memory: nvidia-smi's list of compute processes, text in, rows out. No I/O.

A list that could not be had is unknown: it is never taken for an empty one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmgw.hardware.nvidia_smi_cells import UNKNOWN

PROCESS_FIELDS = ("pid", "gpu_uuid", "used_gpu_memory")
PROCESSES_MAX = 4096

_KNOWN_FIELDS = frozenset({*PROCESS_FIELDS, "used_memory", "process_name", "name", "gpu_name", "gpu_bus_id"})
_GPU_UUID = re.compile(r"GPU-[0-9A-Za-z_-]{8,90}")
_NUMBER = re.compile(r"([0-9]{1,12})(\.[0-9]{1,6})?( ?(MiB|MB))?")
_NONE_RUN = re.compile(r"no running (compute )?processes( were)? found", re.IGNORECASE)


@dataclass(frozen=True)
class GpuProcess:
    """One process on one GPU. `used_mib` is None where the driver does not say how much it holds."""

    uuid: str
    pid: int
    used_mib: int | None


@dataclass(frozen=True)
class GpuHolders:
    """The processes on one GPU; `complete` is False when there may be others."""

    processes: tuple[GpuProcess, ...] = ()
    complete: bool = False


@dataclass
class GpuProcesses:
    """What a listing says of all GPUs. `whole` is False when it says nothing of some that it does not name;
    of those in `unknown` it is known to have left something out."""

    processes: list[GpuProcess] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    whole: bool = False

    def of(self, uuid: str) -> GpuHolders:
        """Who is on that GPU."""
        there = tuple(process for process in self.processes if process.uuid == uuid)
        return GpuHolders(there, complete=self.whole and uuid not in self.unknown)

    def add(self, process: GpuProcess) -> None:
        """Add a row; a process that is on a GPU twice (on two MIG devices) holds the sum."""
        for number, other in enumerate(self.processes):
            if (other.uuid, other.pid) == (process.uuid, process.pid):
                sizes = (other.used_mib, process.used_mib)
                total = None if None in sizes else sum(size or 0 for size in sizes)
                self.processes[number] = GpuProcess(process.uuid, process.pid, total)
                return
        if len(self.processes) >= PROCESSES_MAX:
            self.whole = False
        else:
            self.processes.append(process)


def process_query_args() -> list[str]:
    """The arguments for the list that `parse_gpu_processes` reads (nvidia-smi --help-query-compute-apps)."""
    return [f"--query-compute-apps={','.join(PROCESS_FIELDS)}", "--format=csv"]


def parse_gpu_processes(text: str, asked: Sequence[str] | None = None) -> GpuProcesses:
    """Read the output of `nvidia-smi --query-compute-apps=… --format=csv`, units in the cells or not.

    `asked` names the columns of output without a heading. A text without either is no listing. A row whose
    pid is a word (`[Not Supported]`) leaves its GPU unknown, a row whose GPU cannot be told all of them.
    """
    found = GpuProcesses()
    heading = list(asked) if asked is not None else None
    found.whole = heading is not None
    for line in text.lstrip("\ufeff").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if not line.strip():
            continue
        named = [cell.partition(" [")[0] for cell in cells]
        if all(name in _KNOWN_FIELDS for name in named):
            found.whole = found.whole or heading is None
            heading = named
        elif _NONE_RUN.search(line):
            found.whole = True
            heading = heading or []
        else:
            _read_row(found, heading, cells)
    return found


def _read_row(found: GpuProcesses, heading: list[str] | None, cells: list[str]) -> None:
    if heading is None or len(cells) != len(heading):
        found.whole = False
        return
    values = dict(zip(heading, cells, strict=True))
    uuid = values.get("gpu_uuid", "")
    pid = values.get("pid", "")
    size = values.get("used_gpu_memory", values.get("used_memory", ""))
    if not _GPU_UUID.fullmatch(uuid):
        found.whole = False
    elif not re.fullmatch(r"[0-9]{1,10}", pid) or not int(pid):
        found.unknown.add(uuid)
    else:
        found.add(GpuProcess(uuid, int(pid), _size(size)))


def size_of_row(heading: Sequence[str], cells: Sequence[str]) -> int | None:
    """What one process holds, in MiB; None when the row does not say it."""
    values = dict(zip(heading, cells, strict=False))
    return _size(values.get("used_gpu_memory", values.get("used_memory", "")))


def _size(cell: str) -> int | None:
    number = None if UNKNOWN.fullmatch(cell) else _NUMBER.fullmatch(cell)
    return round(float(number[1] + (number[2] or ""))) if number else None
