"""Engines of this node that an agent with another work dir started: nobody here knows what they serve.

They are named, with what to type, and their GPUs are not free. None is touched: a work dir that was changed by
mistake is changed back, and the next agent adopts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent.processes import (
    GPUS_MARKER,
    MARKER,
    NODE_MARKER,
    WORK_DIR_MARKER,
    ProcessIdentity,
    ProcessInfo,
    is_alive,
    read_markers,
    read_processes,
)
from llmgw.hardware.nvidia_smi_cells import refuse
from llmgw.messages.agent import Gpu
from llmgw.messages.findings import Finding

# A walk through all of `/proc`: what it looks for comes to be when an agent starts, and hardly ever later.
LOOK_EVERY_S = 60.0
_PIDS_NAMED_MAX = 8


@dataclass(frozen=True)
class LeftBehind:
    """One shard of another work dir: its processes, the uppermost first, and its GPUs (UUIDs).

    `agent` is the pid of the agent that works in that folder now, None when there is none.
    """

    shard_id: str
    work_dir: str
    processes: tuple[ProcessIdentity, ...]
    gpus: tuple[str, ...]
    agent: int | None


class LeftBehinds:
    """Keeps what was found, and looks for more now and then. Its methods block; one thread at a time."""

    def __init__(self, node_id: str, work_dir: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._node_id = node_id
        self._work_dir = work_dir
        self._clock = clock
        self._found: list[LeftBehind] = []
        self._looked_at: float | None = None

    def take_out(self, gpus: Sequence[Gpu]) -> tuple[list[Gpu], list[Finding]]:
        """The GPUs with those out of use that left engines hold, and a finding for each such shard."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._found = find_left_behind(self._node_id, self._work_dir, {gpu.uuid for gpu in gpus})
        self._found = [one for one in self._found if any(is_alive(process) for process in one.processes)]
        held = {uuid: one for one in self._found for uuid in one.gpus}
        kept = [
            refuse(gpu, _sentence(held[gpu.uuid]), "held") if gpu.usable and gpu.uuid in held else gpu
            for gpu in gpus
        ]
        return kept, [_finding(self._node_id, one) for one in self._found]


def find_left_behind(node_id: str, work_dir: str, gpus: set[str]) -> list[LeftBehind]:
    """Shards of other work dirs that were this node's, or that hold one of these GPUs. Blocking.

    Another fleet's agent may run here under the same name: what it tends is named only where it holds our GPUs.
    """
    table = read_processes()
    groups: dict[tuple[str, str], list[tuple[ProcessInfo, dict[str, str]]]] = {}
    for info in table.values():
        markers = read_markers(info.pid) if info.alive else None
        if markers is not None and markers[WORK_DIR_MARKER] != work_dir:
            groups.setdefault((markers[WORK_DIR_MARKER], markers[MARKER]), []).append((info, markers))
    found = []
    for (folder, shard_id), members in sorted(groups.items()):
        held = {uuid for _, markers in members for uuid in markers.get(GPUS_MARKER, "").split(",") if uuid}
        ours = any(markers.get(NODE_MARKER) == node_id for _, markers in members)
        agent = lock_holder(Path(folder) / "agent.lock")
        if held & gpus or (ours and agent is None):
            pids = {info.pid for info, _ in members}
            # Parents first: ending those ends the rest, as a rule.
            ordered = sorted(members, key=lambda member: (member[0].ppid in pids, member[0].pid))
            processes = tuple(info.identity for info, _ in ordered)
            found.append(LeftBehind(shard_id, folder, processes, tuple(sorted(held & gpus)), agent))
    return found


def lock_holder(path: Path) -> int | None:
    """The pid that holds the lock on a file (flock), without touching it: /proc/locks (man proc_locks)."""
    try:
        inode = str(path.stat().st_ino)
        named = path.read_text(errors="replace")[:32].strip()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        # `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF`. The device is another than stat(2) says on some file
        # systems, so inode and the pid that stands in the file must do.
        fields = line.split()
        if fields[1:2] == ["FLOCK"] and fields[4:5] == [named] and fields[5].rpartition(":")[2] == inode:
            return int(named)
    return None


def _sentence(one: LeftBehind) -> str:
    of = f"of agent {one.agent}" if one.agent is not None else "that an earlier agent left behind"
    return f"shard {one.shard_id} {of} (work dir {one.work_dir}) runs on it (pid {one.processes[0].pid})"


def _finding(node_id: str, one: LeftBehind) -> Finding:
    pids = " ".join(str(process.pid) for process in one.processes[:_PIDS_NAMED_MAX])
    more = f" and {len(one.processes) - _PIDS_NAMED_MAX} more" if len(one.processes) > _PIDS_NAMED_MAX else ""
    what = f"shard {one.shard_id} of the work dir {one.work_dir} still runs here (pid {pids}{more})"
    if one.agent is not None:
        return Finding(
            check="engine-of-another-agent",
            severity="warning",
            where=f"{node_id} shard {one.shard_id}",
            what=f"{what}, on GPUs that this agent has, too; agent {one.agent} tends it",
            why="Two agents must not share GPUs: each would place on what the other has",
            remedy="give each agent its own GPUs by discovery.skip_gpus in agent.yaml",
        )
    return Finding(
        check="engine-left-behind",
        severity="error",
        where=f"{node_id} shard {one.shard_id}",
        what=f"{what}, and no agent tends it",
        why="It gets no requests, nothing supervises it, and its GPUs are not free",
        remedy=f"start this agent with supervisor.work_dir {one.work_dir} again, and it is adopted; or end it: "
        f"kill {pids}",
    )
