"""Who a process on a GPU is: its command, when it began, and the shard it belongs to. Reads `/proc`.

It knows nothing of memory, and touches no process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent.processes import ProcessIdentity, read_marker, read_process

COMMAND_CHARS = 60
_WORDS_MAX = 4
_ANCESTORS_MAX = 64
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Holder:
    """A process as far as this agent can see it. `began_boot_s` is None for one that it cannot see: it has
    just ended, or lives in another container. `shard_id` is the shard of this agent that it belongs to."""

    pid: int
    command: str
    began_boot_s: float | None = None
    shard_id: str | None = None


def identifier(work_dir: str, leaders: Iterable[tuple[ProcessIdentity, str]]) -> Callable[[int], Holder]:
    """What identifies processes by pid, each once. `leaders` are the processes that shards began, with their
    shards. Blocking: a few files of `/proc` for each pid.
    """
    sessions = {
        identity.pid: shard_id
        for identity, shard_id in leaders
        if (info := read_process(identity.pid)) is not None and info.start_ticks == identity.start_ticks
    }
    known: dict[int, Holder] = {}

    def identify(pid: int) -> Holder:
        if pid not in known:
            known[pid] = _identify(pid, work_dir, sessions)
        return known[pid]

    return identify


def _identify(pid: int, work_dir: str, sessions: dict[int, str]) -> Holder:
    info = read_process(pid)
    if info is None:
        return Holder(pid, "not visible to this agent")
    shard_id = None
    ancestor = info
    for _ in range(_ANCESTORS_MAX):
        marker = read_marker(ancestor.pid)
        if marker is not None and marker[1] == work_dir:
            shard_id = marker[0]
        elif ancestor.pid in sessions or ancestor.session in sessions:
            shard_id = sessions.get(ancestor.pid) or sessions[ancestor.session]
        parent = read_process(ancestor.ppid) if shard_id is None and ancestor.ppid > 1 else None
        if parent is None:
            break
        ancestor = parent
    return Holder(pid, read_command(pid), info.start_ticks / _TICKS_PER_S, shard_id)


def read_command(pid: int) -> str:
    """A process's command as it may be shown: printable, short, and without its options.

    Options are left out because a foreign program may carry a secret among them.
    """
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()[:4096].decode("utf-8", "replace")
        name = Path(f"/proc/{pid}/comm").read_bytes()[:64].decode("utf-8", "replace")
    except OSError:
        return "has just ended"
    words = [word for word in line.split("\0") if word]
    shown = [os.path.basename(words[0]) or words[0]] if words else [name.strip() or "no name"]
    for word in words[1:_WORDS_MAX]:
        if word.startswith("-") and word != "-m":
            break
        shown.append(word)
    clean = "".join(char if char.isprintable() else " " for char in " ".join(shown)).strip()
    return clean if len(clean) <= COMMAND_CHARS else clean[: COMMAND_CHARS - 1] + "…"
