"""Transient systemd scopes: the cgroup that a shard's processes cannot leave, whatever they do to themselves.

A scope also keeps engines out of the agent's own unit, whose stop then does not touch them. Where systemd does
not run, or the agent is not root, sessions and markers are all there is.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog

from llmgw.hardware.engine_user import Account

log = structlog.get_logger("agent")

SLICE = "llmgw.slice"
TRIAL_TIMEOUT_S = 15.0
# sd_booted(3): this folder exists when systemd runs the machine.
BOOTED = Path("/run/systemd/system")
_IN_SLICE = re.compile(rf"/{re.escape(SLICE)}/([^/\n]+\.scope)(?:/|$)", re.MULTILINE)


class Scopes:
    """Names, wraps and finds the scopes of one work dir's shards. `systemd_run` None: finds only."""

    def __init__(self, work_dir: str, *, systemd_run: str | None, setpriv: str | None = None) -> None:
        self._owner = f"llmgw-{_digest(work_dir)}-"
        self._systemd_run = systemd_run
        self._setpriv = setpriv

    def unit(self, shard_id: str, process: str) -> str:
        """The scope of one process of a shard. Names may differ from ids in characters that units cannot have."""
        return f"{self._prefix(shard_id)}{process}.scope"

    def wrap(self, argv: Sequence[str], shard_id: str, process: str, account: Account | None) -> list[str] | None:
        """The command line that makes the scope, becomes the account's user, and then becomes `argv`; the pid and
        its start time stay. None where no scopes can be made.

        systemd-run(1) --scope runs the program in its own place. Its --uid would take the user's groups from the
        user database, without those of the devices, hence setpriv(1).
        """
        if self._systemd_run is None or (account is not None and self._setpriv is None):
            return None
        become: list[str] = []
        if account is not None:
            assert self._setpriv is not None
            groups = account.groups()
            become = [self._setpriv, f"--reuid={account.uid}", f"--regid={account.gid}"]
            become += [f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups", "--"]
        return [
            self._systemd_run,
            *("--scope", "--quiet", "--collect", f"--slice={SLICE}"),
            f"--unit={self.unit(shard_id, process)}",
            f"--description=llmgw shard {shard_id} ({process})",
            "--",
            *become,
            *argv,
        ]

    def holds(self, pid: int, shard_id: str) -> bool:
        """True when the process is in a scope of this shard."""
        unit = read_scope(pid)
        return unit is not None and unit.startswith(self._prefix(shard_id))

    def undescribed(self, pid: int, described: Iterable[str]) -> bool:
        """True when the process is in a scope of this work dir whose shard is not among `described`."""
        unit = read_scope(pid)
        if unit is None or not unit.startswith(self._owner):
            return False
        return not any(unit.startswith(self._prefix(shard_id)) for shard_id in described)

    def _prefix(self, shard_id: str) -> str:
        # Two ids may read the same once cleaned; their digests differ.
        clean = re.sub(r"[^A-Za-z0-9.]", "_", shard_id)
        return f"{self._owner}{clean}-{_digest(shard_id)}-"


def read_scope(pid: int, proc: Path = Path("/proc")) -> str | None:
    """The scope of our slice that a process is in (man cgroups: /proc/PID/cgroup, either version), or None."""
    try:
        match = _IN_SLICE.search((proc / str(pid) / "cgroup").read_text())
    except OSError:
        return None
    return match[1] if match else None


def find_scopes(work_dir: str, *, booted: Path = BOOTED) -> Scopes | None:
    """The scopes of this machine; None where systemd does not run it or the agent is not root.

    One is made on trial. When that fails, engines are started without, and the log says so. Blocking.
    """
    if not booted.is_dir() or os.geteuid() != 0:
        return None
    systemd_run = shutil.which("systemd-run")
    problem = "systemd-run is not installed" if systemd_run is None else _trial(systemd_run)
    if problem is not None:
        log.warning("engines are started without scopes of their own", reason=problem)
    return Scopes(work_dir, systemd_run=systemd_run if problem is None else None, setpriv=shutil.which("setpriv"))


def _trial(systemd_run: str) -> str | None:
    unit = f"llmgw-trial-{os.getpid()}.scope"
    command = [systemd_run, "--scope", "--quiet", "--collect", f"--slice={SLICE}", f"--unit={unit}", "--", "true"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRIAL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        return f"systemd-run: {exc}"
    said = done.stderr.strip().splitlines()
    return (
        None if done.returncode == 0 else f"systemd-run: {said[-1] if said else f'exit code {done.returncode}'}"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
