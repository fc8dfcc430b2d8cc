"""Processes of an end that its program's own process group does not hold: those of a wrapper that began a session
of their own, and those that outlived an agent which was killed. They are known by a variable that they inherit.
"""

from __future__ import annotations

import signal
import time

from llmgw.agent.processes import ProcessInfo, read_environment, read_processes, send_signal

END_MARKER = "LLMGW_BANDWIDTH_END"
_LOOK_S = 0.02
_LIMIT_S = 2.0


def marker(work_dir: str, end: str) -> str:
    """What END_MARKER is for an end of the agent that works in this folder."""
    return f"{end} {work_dir}"


def kill_marked(work_dir: str, end: str | None = None) -> int:
    """Kill what is left of an end, None: of all ends that an agent in this folder ever started. Returns how many
    processes there were.

    Blocking, for 2 s at most: what hangs in the kernel is not waited for.
    """
    killed: set[tuple[int, int]] = set()
    deadline = time.monotonic() + _LIMIT_S
    empty = 0
    # Twice, since a process that forks and exits can hide its child from one walk through /proc.
    while empty < 2 and time.monotonic() < deadline:
        left = [info for info in read_processes().values() if info.alive and _is_marked(info, work_dir, end)]
        empty = 0 if left else empty + 1
        for info in left:
            if send_signal(info.identity, signal.SIGKILL):
                killed.add((info.pid, info.start_ticks))
        if left:
            time.sleep(_LOOK_S)
    return len(killed)


def _is_marked(info: ProcessInfo, work_dir: str, end: str | None) -> bool:
    said = read_environment(info.pid, (END_MARKER.encode(),)).get(END_MARKER, "")
    of, _, folder = said.partition(" ")
    return folder == work_dir and end in (None, of)
