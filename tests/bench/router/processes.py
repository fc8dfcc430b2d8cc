"""Processes of the bench, each bound to a core, and what a whole tree of them has used: CPU time and memory."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

END_WAIT_S = 3.0


@dataclass(frozen=True)
class Cores:
    """One core for what is measured and one for the tools; the same one where there is only one."""

    tools: int
    gateway: int

    @classmethod
    def of_this_machine(cls) -> Cores:
        """The first and the last core that this process may use."""
        usable = sorted(os.sched_getaffinity(0))
        return cls(tools=usable[0], gateway=usable[-1])


def start(
    argv: Sequence[str | Path],
    core: int,
    log: Path,
    *,
    env: dict[str, str] | None = None,
    pass_fds: Iterable[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program on one core; its output is appended to `log`. Raises OSError when it cannot be started."""
    mine = os.sched_getaffinity(0)
    # A child has the affinity of the thread that makes it, from its first instruction on.
    os.sched_setaffinity(0, {core})
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                [str(part) for part in argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
                cwd=log.parent,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
    finally:
        os.sched_setaffinity(0, mine)


def tree(pid: int) -> list[psutil.Process]:
    """A process and its descendants, as far as they live."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@dataclass(frozen=True)
class CpuTime:
    """CPU seconds, and those of them in the kernel. All are counted in nanoseconds, the kernel's in ticks of some
    milliseconds."""

    total_s: float = 0.0
    system_s: float = 0.0

    def __sub__(self, other: CpuTime) -> CpuTime:
        return CpuTime(self.total_s - other.total_s, self.system_s - other.system_s)


def cpu_time(pids: Iterable[int]) -> CpuTime:
    """What the trees of these processes have used until now."""
    total_s = system_s = 0.0
    for pid in pids:
        for process in tree(pid):
            try:
                system_s += process.cpu_times().system
                total_s += time.clock_gettime(_cpu_clock(process.pid))
            except (psutil.NoSuchProcess, OSError):
                continue
    return CpuTime(total_s, system_s)


def _cpu_clock(pid: int) -> int:
    """The id of the clock that runs while this process does (clock_getcpuclockid(3), as Linux computes it)."""
    return (~pid << 3) | 2


def memory_kib(pids: Iterable[int]) -> float:
    """Memory of the trees of these processes; pages that several share count in part (PSS, proc(5))."""
    total = 0
    for pid in pids:
        for process in tree(pid):
            try:
                total += process.memory_full_info().pss
            except psutil.NoSuchProcess:
                continue
    return total / 1024


def files_max(pid: int) -> int:
    """How many files a process may have open."""
    return int(psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE)[0])


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants, by force where they do not go."""
    members = tree(process.pid)
    for member in members:
        try:
            member.terminate()
        except psutil.NoSuchProcess:
            pass
    _, left = psutil.wait_procs(members[1:], timeout=END_WAIT_S)
    try:
        process.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for member in left:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            pass


def wait_until(condition: Callable[[], object], deadline_s: float, step_s: float = 0.01) -> bool:
    """Ask until it is true; False when that does not come in time."""
    end_at = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end_at:
            return False
        time.sleep(step_s)
    return True
