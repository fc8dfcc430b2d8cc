"""Processes as the kernel knows them: identity, markers, exits and signals.

A pid alone proves nothing: it is reused. Here a process is its pid and its start time, and nothing is
signalled without both. Knows `/proc` and nothing of shards' phases.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from llmgw.agent.scopes import Scopes

MARKER = "LLMGW_SHARD"
WORK_DIR_MARKER = "LLMGW_WORK_DIR"
# For an agent that works in another folder: whose engine it meets, and what that holds.
NODE_MARKER = "LLMGW_NODE"
GPUS_MARKER = "LLMGW_GPUS"
# Engines that rename their processes through setproctitle wipe the environment block, and the marker with it;
# this variable makes that library leave it alone (its README: "SPT_NOENV").
KEEP_ENVIRONMENT = "SPT_NOENV"
_MARKERS = frozenset(name.encode() for name in (MARKER, WORK_DIR_MARKER, NODE_MARKER, GPUS_MARKER))
EXIT_POLL_S = 0.25


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid and when it began: field 22 of `/proc/PID/stat`, clock ticks since boot (man proc_pid_stat)."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class ProcessInfo:
    """One row of the process table. `state` is the kernel's letter; Z and X are dead already."""

    pid: int
    ppid: int
    session: int
    start_ticks: int
    state: str

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start_ticks)

    @property
    def alive(self) -> bool:
        return self.state not in "ZXx"


@dataclass(frozen=True)
class Exit:
    """How a process ended. `code` is negative for a signal, None when it was not our child."""

    name: str
    code: int | None

    def sentence(self) -> str:
        """`engine exited with code 1`, `engine was killed by SIGKILL`."""
        if self.code is None:
            return f"{self.name} exited (its code is unknown: an earlier agent had started it)"
        if self.code >= 0:
            return f"{self.name} exited with code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"{self.name} was killed by {name}"


def boot_id() -> str:
    """The kernel's name for this boot (man proc_sys_kernel: random/boot_id)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_process(pid: int) -> ProcessInfo | None:
    """One process, zombies included; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # The command stands in brackets and may contain brackets and blanks itself.
        fields = stat[stat.rindex(b")") + 2 :].split()
        return ProcessInfo(
            pid=pid,
            state=fields[0].decode(),
            ppid=int(fields[1]),
            session=int(fields[3]),
            start_ticks=int(fields[19]),
        )
    except (OSError, ValueError, IndexError):
        return None


def is_alive(identity: ProcessIdentity) -> bool:
    """True while that very process runs; a zombie and a reused pid are not it."""
    info = read_process(identity.pid)
    return info is not None and info.alive and info.start_ticks == identity.start_ticks


def read_marker(pid: int) -> tuple[str, str] | None:
    """(shard id, work dir) that a process carries in its environment; None when it carries no marker."""
    found = read_markers(pid)
    return (found[MARKER], found[WORK_DIR_MARKER]) if found is not None else None


def read_environment(pid: int, names: Collection[bytes]) -> dict[str, str]:
    """Those of the variables that a process was started with; none of one that is gone, or somebody else's."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    if not any(name in block for name in names):
        return {}  # so it is of nearly all processes of a machine
    found = {}
    for item in block.split(b"\0"):
        name, _, value = item.partition(b"=")
        if name in names:
            found[name.decode()] = os.fsdecode(value)
    return found


def read_markers(pid: int) -> dict[str, str] | None:
    """All that we put into a shard's environment, shard and work dir among it; None where those are not."""
    found = read_environment(pid, _MARKERS)
    return found if MARKER in found and WORK_DIR_MARKER in found else None


def listens_for_another(address: str, port: int, shard_id: str, work_dir: str) -> bool:
    """True when a process that carries another shard's marker listens there. Blocking: a walk through `/proc`.

    A listener without a marker is nobody's business here: wrappers start engines where no marker reaches.
    """
    for pid in read_processes():
        marker = read_marker(pid)
        if marker is None or marker == (shard_id, work_dir):
            continue
        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except (psutil.Error, OSError):
            continue
        for one in connections:
            if one.status != psutil.CONN_LISTEN or not one.laddr or one.laddr.port != port:
                continue
            if one.laddr.ip in (address, "0.0.0.0", "::"):
                return True
    return False


def read_processes() -> dict[int, ProcessInfo]:
    """The whole process table, by pid."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (info := read_process(int(name))):
            table[info.pid] = info
    return table


def belonging(
    shard_id: str,
    work_dir: str,
    recorded: Sequence[ProcessIdentity],
    *,
    watched: Collection[int] = (),
    scopes: Scopes | None = None,
) -> list[ProcessInfo]:
    """Every living process of a shard: its scope, sessions that we began, descendants, and what has the marker.

    A session is ours while its leader, alive or not yet reaped, has the recorded start time; and after it was
    reaped, where we saw it end (`watched`): the kernel gives a number to nobody while a session has it. Else
    scope and marker alone count. Blocking: a walk through `/proc`.
    """
    table = read_processes()
    leaders = {
        one.pid
        for one in recorded
        if (table[one.pid].start_ticks == one.start_ticks if one.pid in table else one.pid in watched)
    }
    markers = {pid: read_marker(pid) for pid in table}
    seeds = {
        info.pid
        for info in table.values()
        if info.session in leaders
        or info.pid in leaders
        or markers[info.pid] == (shard_id, work_dir)
        or (scopes is not None and scopes.holds(info.pid, shard_id))
    }
    return _with_descendants(table, markers, seeds, {(shard_id, work_dir)})


def uncovered(work_dir: str, described: Iterable[str], *, scopes: Scopes | None = None) -> list[ProcessInfo]:
    """Living processes with this work dir's marker, or in a scope of it, whose shard is not among `described`
    (which is read when the walk through `/proc` is over), with descendants."""
    table = read_processes()
    markers = {pid: read_marker(pid) for pid in table}
    known = set(described)
    strays = {
        pid: marker
        for pid, marker in markers.items()
        if (marker is not None and marker[1] == work_dir and marker[0] not in known)
        or (marker is None and scopes is not None and scopes.undescribed(pid, known))
    }
    return _with_descendants(table, markers, set(strays), {marker for marker in strays.values() if marker})


def _with_descendants(
    table: dict[int, ProcessInfo],
    markers: dict[int, tuple[str, str] | None],
    seeds: set[int],
    own: set[tuple[str, str]],
) -> list[ProcessInfo]:
    """Close `seeds` under parenthood, leaving out what carries another shard's marker, and this agent."""
    children: dict[int, list[int]] = {}
    for info in table.values():
        children.setdefault(info.ppid, []).append(info.pid)
    found: set[int] = set()
    queue = list(seeds)
    while queue:
        pid = queue.pop()
        if pid in found or (markers[pid] is not None and markers[pid] not in own):
            continue
        found.add(pid)
        queue.extend(children.get(pid, ()))
    ancestor: int | None = os.getpid()
    while ancestor and ancestor in table:
        found.discard(ancestor)
        ancestor = table[ancestor].ppid
    return [table[pid] for pid in sorted(found) if table[pid].alive]


def send_signal(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal that very process; False when it is gone. A pid reused by another process is never hit."""
    if not hasattr(os, "pidfd_open"):  # a Python built against old kernel headers
        if not is_alive(identity):
            return False
        try:
            os.kill(identity.pid, number)
        except OSError:
            return False
        return True
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        # The descriptor holds whichever process it is, so the check cannot be overtaken by a reuse.
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


class ExitWatch:
    """Calls back in the event loop, once, when a process is gone; child or not.

    By pidfd where Python has it (man pidfd_open: readable when the process terminates), else by looking
    every quarter of a second.
    """

    def __init__(self, identity: ProcessIdentity, callback: Callable[[], None]) -> None:
        self._identity = identity
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._fd: int | None = None
        if hasattr(os, "pidfd_open"):
            try:
                self._fd = os.pidfd_open(identity.pid)
            except OSError:
                pass  # gone, or out of descriptors: looking serves both
        if self._fd is not None and is_alive(identity):
            self._loop.add_reader(self._fd, self._gone)
        else:
            self._look()

    def close(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _look(self) -> None:
        if is_alive(self._identity):
            self._timer = self._loop.call_later(EXIT_POLL_S, self._look)
        else:
            self._timer = self._loop.call_later(0, self._gone)

    def _gone(self) -> None:
        self.close()
        self._callback()
