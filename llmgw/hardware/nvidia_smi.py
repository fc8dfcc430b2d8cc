"""nvidia-smi's CSV: text in, GPUs and findings out. No I/O, and nothing raises: an odd line becomes a finding
and never costs the GPUs of the other lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from llmgw.hardware.gpu_processes import GpuProcesses, size_of_row
from llmgw.hardware.nvidia_smi_cells import ERROR_WORD, UNKNOWN, UUID, describe_row, refuse, shown
from llmgw.hardware.nvidia_smi_table import Listing, looks_like_list, looks_like_table, parse_list, parse_table
from llmgw.messages.agent import GPUS_PER_NODE_MAX, Gpu
from llmgw.messages.findings import Finding, Severity

QUERY_FIELDS = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
    "mig.mode.current",
    "power.draw",
    "power.limit",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.failure",
    "gpu_recovery_action",
    "clocks_event_reasons.active",
)
# Without these a GPU cannot be described; every other field may be missing in an older driver.
REQUIRED_FIELDS = frozenset({"index", "uuid", "name"})

TEXT_BYTES_MAX = 1024 * 1024
_LINES_MAX = 4096
_FINDINGS_MAX = 32

_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*( \[[^\]]{1,16}\])?")
_KNOWN_FIELDS = frozenset(
    {*QUERY_FIELDS, "gpu_uuid", "gpu_name", "gpu_bus_id", "memory.free", "power.draw", "timestamp"}
)
_ALIASES = {"gpu_uuid": "uuid", "gpu_name": "name", "gpu_bus_id": "pci.bus_id"}
_BUS = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]"
_BUS_ID = re.compile(_BUS)
_BRAND = re.compile(r"(NVIDIA|GeForce|Tesla|Quadro|TITAN|GRID|RTX|GTX)\b.*", re.IGNORECASE)

_LOST = re.compile(
    rf"unable to determine the device handle for gpu\s*(?:\d+:\s+)?({_BUS}):\s*(.*)", re.IGNORECASE
)
_INFOROM = re.compile(rf"warning: inforom is corrupted at gpu\s*({_BUS})", re.IGNORECASE)
_INVALID_FIELD = re.compile(r'field "([^"]{1,80})" is not a valid field to query', re.IGNORECASE)
_PROCESS_SECTION = re.compile(r"-{2,}\s*compute-apps\s*\(([a-z_, ]{1,200})")
_NO_DEVICES = re.compile(r"no devices were found", re.IGNORECASE)
_DRIVER = re.compile(
    r"nvidia-smi has failed|failed to initialize nvml|driver/library version mismatch|nvml library version",
    re.IGNORECASE,
)


@dataclass
class GpuTable:
    """What a text says: the GPUs of its rows, and everything that is no row of its own.

    `processes` is filled by who asks for them; it is unknown in a table of GPUs alone.
    """

    gpus: list[Gpu] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    processes: GpuProcesses = field(default_factory=GpuProcesses)


def query_args(fields: Sequence[str] = QUERY_FIELDS) -> list[str]:
    """The arguments that ask for `fields` in the format that `parse_gpus` reads."""
    return [f"--query-gpu={','.join(fields)}", "--format=csv"]


def invalid_field(text: str) -> str | None:
    """The field that this driver's nvidia-smi does not know, when it refused the query for one."""
    match = _INVALID_FIELD.search(text[:TEXT_BYTES_MAX])
    return match[1] if match else None


def parse_gpus(text: str) -> GpuTable:
    """Read the output of `nvidia-smi --query-gpu=… --format=csv`, units in the cells or not; also that of plain
    `nvidia-smi` and of `nvidia-smi -L`, which people save.

    Cells are found by the heading, whatever was asked in whatever order. Without a heading they are
    recognised by their shape as far as that goes (UUID, bus id, name). Words for unknown (`[N/A]`,
    `[Not Supported]`, `ERR!`, …) are None. Facts: nvidia-smi(1) and saved output of real machines.
    """
    return _Reader().read(text)


class _Reader:
    def __init__(self) -> None:
        self.table = GpuTable()
        self.heading: list[str] | None = None
        self.guessed = False
        self.lost_lines = 0
        self.silent_rows = 0
        self.driver_lines: list[str] = []
        self.no_devices = False
        self.unread = 0
        self.refused_for_count = 0
        self.held_mib: int | None = None
        self.process_fields: list[str] | None = None

    def read(self, text: str) -> GpuTable:
        text = text[:TEXT_BYTES_MAX].lstrip("\ufeff")
        lines = text.splitlines()
        rest = [line for line in lines[:_LINES_MAX] if line.strip() and not self._read_message(line.strip())]
        # What says itself that it is CSV may hold anything in its cells.
        is_csv = any(_read_heading(_cells(line)) for line in rest)
        if not is_csv and looks_like_list(text):
            self._take(parse_list(rest))
        elif not is_csv and looks_like_table(text):
            self._take(parse_table(rest))
        else:
            for line in rest:
                self._read_cells(line)
        self.unread += max(0, len(lines) - _LINES_MAX)
        self._conclude()
        return self.table

    def _take(self, listing: Listing) -> None:
        for gpu in listing.gpus:
            self._add(gpu)
        for line in listing.unread:
            self._unread_line(line)

    def _read_message(self, line: str) -> bool:
        if match := _LOST.search(line):
            self.lost_lines += 1
            reason = shown(match[2]).rstrip(".") or "the driver cannot reach it"
            self._find(
                "gpu-lost",
                match[1],
                f"{match[1]} is lost: {reason}",
                why="The driver sees the card but it does not answer; what ran on it is dead",
                remedy="look at dmesg for Xid 79 (fallen off the bus), then power-cycle the node",
            )
        elif match := _INFOROM.search(line):
            self._find(
                "gpu-inforom",
                match[1],
                f"{match[1]} has a corrupted infoROM",
                severity="warning",
                why="Its serial number, ECC history and configuration cannot be trusted",
                remedy="have the card looked at; nvidia-smi -q shows which object is affected",
            )
        elif match := _INVALID_FIELD.search(line):
            self._find(
                "gpu-unread",
                "nvidia-smi",
                f"this driver's nvidia-smi does not know the field {shown(match[1])}",
                severity="info",
            )
        elif _DRIVER.search(line):
            self.driver_lines.append(shown(line).rstrip("."))
        elif _NO_DEVICES.search(line):
            self.no_devices = True
        else:
            return False
        return True

    def _read_cells(self, line: str) -> None:
        if section := _PROCESS_SECTION.match(line):
            self.process_fields = [name.strip() for name in section[1].split(",")]
            return
        cells = _cells(line)
        if self.process_fields is not None:
            size = size_of_row(self.process_fields, cells)
            if size is None:
                self._unread_line(line)
            else:
                self.held_mib = (self.held_mib or 0) + size
            return
        if self.heading is None or self.guessed:
            heading = _read_heading(cells)
            if heading is not None:
                self.heading, self.guessed = heading, False
                return
        if self.heading is None:
            self.heading = _guess_heading(cells)
            self.guessed = True
        if self.heading is None or (self.guessed and len(cells) != len(self.heading)):
            # Nothing here says what the columns are.
            if all(ERROR_WORD.fullmatch(cell) for cell in cells):
                self.silent_rows += 1
            else:
                self._unread_line(line)
            return
        if _read_heading(cells) == self.heading:
            return
        self._read_row(cells, line)

    def _read_row(self, cells: list[str], line: str) -> None:
        assert self.heading is not None
        if all(UNKNOWN.fullmatch(cell) for cell in cells) and any(ERROR_WORD.fullmatch(cell) for cell in cells):
            self.silent_rows += 1
            return
        # A line that was cut: its first cells are right, the last may be a part, the others may be anything.
        short = len(cells) < len(self.heading)
        whole = cells[:-1] if short else cells
        gpu = describe_row(
            dict(zip(self.heading, whole, strict=False)), position=len(self.table.gpus), asked=self.heading
        )
        if gpu is None or len(cells) > len(self.heading) or (short and not gpu.uuid):
            self._unread_line(line)
            return
        if short:
            gpu = refuse(
                gpu, f"nvidia-smi gave only {len(cells)} of its {len(self.heading)} values; ask it again"
            )
        self._add(gpu)

    def _add(self, gpu: Gpu) -> None:
        for other in self.table.gpus:
            if gpu.uuid and gpu.uuid == other.uuid:
                self._listed_twice(gpu, gpu.uuid, "the second line is left out")
                return
            if gpu.index == other.index and gpu.uuid and other.uuid:
                # Two GPUs by their UUIDs, which are what shards are given: an odd index costs neither.
                self._listed_twice(gpu, f"index {gpu.index}", "its UUIDs differ, so both are taken")
            elif gpu.index == other.index:
                self._listed_twice(gpu, f"index {gpu.index}", "the second line is left out")
                return
        if len(self.table.gpus) >= GPUS_PER_NODE_MAX:
            self.refused_for_count += 1
            return
        self.table.gpus.append(gpu)

    def _listed_twice(self, gpu: Gpu, what: str, then: str) -> None:
        self._find(
            "gpu-duplicate",
            f"GPU {gpu.index}",
            f"{what} is listed twice; {then}",
            severity="warning",
            why="Two names for one GPU would let two shards share it",
            remedy="run nvidia-smi -L and compare",
        )

    def _conclude(self) -> None:
        if self.held_mib is not None and len(self.table.gpus) == 1 and self.table.gpus[0].memory_used_mib is None:
            # Unified memory: the driver knows no total, and yet what each process holds.
            self.table.gpus[0] = msgspec.structs.replace(self.table.gpus[0], memory_used_mib=self.held_mib)
        if self.refused_for_count:
            self._find(
                "gpu-count",
                "nvidia-smi",
                f"{self.refused_for_count} GPUs beyond the first {GPUS_PER_NODE_MAX} are left out",
                why="llmgw takes no more GPUs from one node",
                remedy="name those that it should leave alone in discovery.skip_gpus",
            )
        if self.driver_lines:
            self._find(
                "gpu-driver",
                "nvidia-smi",
                ". ".join(dict.fromkeys(self.driver_lines)),
                why="No GPU of this node can be used",
                remedy="load the driver (modprobe nvidia), or reboot after a driver update",
            )
        # A row without a single value belongs to the GPU whose loss was said in a line of its own.
        silent = self.silent_rows - self.lost_lines
        if silent > 0:
            self._find(
                "gpu-lost",
                "nvidia-smi",
                f"{silent} {'row says' if silent == 1 else 'rows say'} nothing but unknown: "
                "a GPU that is there and does not answer",
                why="What ran on it is dead",
                remedy="look at dmesg for Xid errors, then power-cycle the node",
            )
        if self.no_devices and not self.table.gpus and not self.lost_lines:
            self._find(
                "gpu-none",
                "nvidia-smi",
                "the driver is loaded and finds no GPU",
                severity="warning",
                why="This node can run nothing that needs one",
                remedy="check lspci -d 10de: and dmesg; in a VM, check that the GPUs are passed through",
            )
        if self.unread:
            self._find(
                "gpu-unread",
                "nvidia-smi",
                f"{self.unread} more lines of its output could not be read",
                severity="warning",
            )

    def _unread_line(self, line: str) -> None:
        if sum(finding.check == "gpu-unread" for finding in self.table.findings) >= 8:
            self.unread += 1
            return
        self._find(
            "gpu-unread",
            "nvidia-smi",
            f"a line of its output could not be read: {shown(line)}",
            severity="warning",
            remedy="run nvidia-smi by hand and look at the whole output",
        )

    def _find(
        self, check: str, where: str, what: str, *, severity: Severity = "error", why: str = "", remedy: str = ""
    ) -> None:
        finding = Finding(check=check, severity=severity, where=where, what=what, why=why, remedy=remedy)
        if finding not in self.table.findings and len(self.table.findings) < _FINDINGS_MAX:
            self.table.findings.append(finding)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.rstrip("\r\n").split(", ")]


def _read_heading(cells: list[str]) -> list[str] | None:
    """The fields of a heading without their units, or None when the line is none."""
    if not all(_FIELD.fullmatch(cell) for cell in cells):
        return None
    fields = [cell.partition(" [")[0] for cell in cells]
    if not any(name in _KNOWN_FIELDS for name in fields):
        return None
    return [_ALIASES.get(name, name) for name in fields]


def _guess_heading(cells: list[str]) -> list[str] | None:
    """Fields by the shape of the first row's cells; None when nothing in it names a GPU."""
    fields: list[str] = []
    for number, cell in enumerate(cells):
        guess = f"?{number}"
        if UUID.fullmatch(cell):
            guess = "uuid"
        elif _BUS_ID.fullmatch(cell):
            guess = "pci.bus_id"
        elif _BRAND.fullmatch(cell):
            guess = "name"
        elif number == 0 and re.fullmatch(r"[0-9]{1,2}", cell):
            guess = "index"
        fields.append(guess if guess not in fields else f"?{number}")
    return fields if "name" in fields else None
