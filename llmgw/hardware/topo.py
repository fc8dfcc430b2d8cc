"""How a node's GPUs and adapters are joined: `nvidia-smi topo -m`, text in, facts out. No I/O, nothing raises:
what cannot be read is a problem, in a sentence, and costs nothing of the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TEXT_BYTES_MAX = 1024 * 1024
_LINES_MAX = 4096
_PROBLEMS_MAX = 32
# A GPU that has more NVLinks to its peers than ports (18 on Hopper and Blackwell) shares them by a switch.
_LINKS_PER_GPU_MAX = 18

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LABEL = r"(?:GPU|NIC)\d{1,3}"
# A device's name as a column: older drivers print mlx5_0 where newer ones print NIC0.
_DEVICE = r"[a-z][A-Za-z0-9_.]{0,62}"
_COLUMN = re.compile(rf"\s*({_LABEL}(?!\d)|{_DEVICE})")
_COLUMNS_END = re.compile(r"(?:CPU|NUMA|GPU NUMA) (?:Affinity|ID)")
_ROW = re.compile(rf"\s*({_LABEL}|{_DEVICE})(?=\s)")
# In the order of their distance, after nvidia-smi's own legend. PSB and SOC are older words.
_PCI_WORDS = ("PIX", "PSB", "PXB", "PHB", "NODE", "SYS", "SOC")
_CELL = re.compile(r"\s*(NV\d{1,3}|PIX|PSB|PXB|PHB|NODE|SYS|SOC|X|C2C|N/A|\?)")
_UNREAD_CELL = re.compile(r"\s*(\S+)")
_NIC_NAME = re.compile(r"\s*(NIC\d{1,3})\s*:\s*(\S{1,64})\s*$")
_OTHER_NODE = frozenset({"SYS", "SOC"})


def distance(path: str) -> int | None:
    """How far two devices are from each other by PCI, the nearest 0; None for what is no PCI path."""
    return _PCI_WORDS.index(path) if path in _PCI_WORDS else None


@dataclass
class Topology:
    """What the table says. `gpus` are the columns; `paths` and `nics` have the rows that were there."""

    gpus: list[int] = field(default_factory=list)
    paths: dict[int, dict[int, str]] = field(default_factory=dict)
    """GPU → other GPU → the path between them, `NV18` or `SYS`."""
    nics: dict[int, dict[str, str]] = field(default_factory=dict)
    """GPU → adapter → the path between them. Adapters without a legend keep their columns' names, `NIC0`."""
    problems: list[str] = field(default_factory=list)

    def nvlink_peers(self, gpu: int) -> list[int] | None:
        """The GPUs that it has NVLinks with; None when its row is not known."""
        row = self.paths.get(gpu)
        return None if row is None else sorted(other for other, path in row.items() if path.startswith("NV"))

    def nearest_nics(self, gpu: int) -> list[str] | None:
        """The adapters on the shortest way, all of them when several tie; none when all are on another NUMA node.

        None when the GPU's row is not known.
        """
        row = self.nics.get(gpu)
        if row is None:
            return None
        near = {nic: far for nic, path in row.items() if (far := distance(path)) is not None}
        shortest = min((far for nic, far in near.items() if row[nic] not in _OTHER_NODE), default=None)
        return [nic for nic, far in near.items() if far == shortest]

    def through_switch(self, gpu: int) -> bool | None:
        """True when it has more NVLinks to its peers than it has ports, which takes a switch; else unknown."""
        row = self.paths.get(gpu, {})
        links = [int(path[2:]) for path in row.values() if path.startswith("NV")]
        return True if sum(links) > _LINKS_PER_GPU_MAX else None


def parse_topology(text: str) -> Topology:
    """Read `nvidia-smi topo -m` as every driver prints it: underlined headings, names glued to each other, device
    names or `NIC0` with a legend below, empty affinities, rows that were cut off.
    """
    return _Reader().read(text)


class _Reader:
    def __init__(self) -> None:
        self.found = Topology()
        self.columns: list[str] = []
        self.legend: dict[str, str] = {}
        self.rows: dict[str, dict[str, str]] = {}

    def read(self, text: str) -> Topology:
        lines = _ANSI.sub("", text[:TEXT_BYTES_MAX].lstrip("\ufeff")).splitlines()
        for line in lines[:_LINES_MAX]:
            if not line.strip():
                continue
            if name := _NIC_NAME.match(line):
                self.legend[name[1]] = name[2]
            elif not self.columns:
                self.columns = _columns(line)
            elif (row := _ROW.match(line)) and row[1] in self.columns:
                self._read_row(row[1], line[row.end() :])
        self._conclude(empty=not "".join(lines).strip())
        return self.found

    def _read_row(self, label: str, rest: str) -> None:
        if label in self.rows:
            self._problem(f"{label} has two rows; the first one counts")
            return
        cells: dict[str, str] = {}
        at, unread = 0, []
        for column in self.columns:
            match = _CELL.match(rest, at)
            if match is None:
                match = _UNREAD_CELL.match(rest, at)
                if match is None:
                    self._problem(f"the row of {label} ends before {column}")
                    break
                unread.append(f"{column} ({match[1][:20]})")
            elif match[1] not in ("X", "N/A", "?"):
                cells[column] = match[1]
            at = match.end()
        if unread:
            self._problem(f"in the row of {label} these paths could not be read: {', '.join(unread[:8])}")
        self.rows[label] = cells

    def _conclude(self, *, empty: bool) -> None:
        found = self.found
        if not self.columns:
            self._problem(
                "there is nothing to read" if empty else "no table of nvidia-smi topo -m was found in this text"
            )
            return
        found.gpus = sorted({int(column[3:]) for column in self.columns if column.startswith("GPU")})
        for gpu in found.gpus:
            row = self.rows.get(f"GPU{gpu}")
            if row is None:
                continue
            found.paths[gpu] = {
                int(column[3:]): path
                for column, path in row.items()
                if column.startswith("GPU") and int(column[3:]) != gpu
            }
            found.nics[gpu] = {
                self.legend.get(column, column): path
                for column, path in row.items()
                if not column.startswith("GPU")
            }
        missing = [f"GPU{gpu}" for gpu in found.gpus if gpu not in found.paths]
        if missing:
            self._problem(f"the rows of {', '.join(missing)} are missing: how they are joined is not known")
        self._judge_nvlinks()

    def _judge_nvlinks(self) -> None:
        paths = self.found.paths
        for one, row in paths.items():
            for other, path in row.items():
                back = paths.get(other, {}).get(one)
                if one < other and back is not None and path.startswith("NV") != back.startswith("NV"):
                    self._problem(f"GPU{one} says {path} of GPU{other}, which says {back} of GPU{one}")
        for gpu in left_out(self.found):
            self._problem(f"GPU{gpu} has no NVLink, while all others are joined by NVLinks to each other")

    def _problem(self, what: str) -> None:
        if what not in self.found.problems and len(self.found.problems) < _PROBLEMS_MAX:
            self.found.problems.append(what)


def left_out(topology: Topology) -> list[int]:
    """GPUs without any NVLink where all others, two at least, are joined to each other: half-dead ones, unless
    they are of another kind.
    """
    paths = topology.paths
    alone = [gpu for gpu in paths if topology.nvlink_peers(gpu) == []]
    linked = [gpu for gpu in paths if gpu not in alone]
    whole = len(linked) > 2 and all(
        paths[one].get(other, "NV").startswith("NV") for one in linked for other in linked if one != other
    )
    return alone if whole and len(linked) == len(topology.gpus) - len(alone) else []


def _columns(line: str) -> list[str]:
    """The labels of a heading, or nothing when the line is none."""
    end = _COLUMNS_END.search(line)
    head = line[: end.start()] if end else line
    columns: list[str] = []
    at = 0
    while match := _COLUMN.match(head, at):
        columns.append(match[1])
        at = match.end()
    if head[at:].strip() or not any(column.startswith("GPU") for column in columns):
        return []
    return columns if len(set(columns)) == len(columns) else []
