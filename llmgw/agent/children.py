"""Processes that this agent starts: each in a session of its own, marked, its output in a file.

Their ends are read without reaping, so that no pid is given to another while it is watched.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent.processes import (
    GPUS_MARKER,
    KEEP_ENVIRONMENT,
    MARKER,
    NODE_MARKER,
    WORK_DIR_MARKER,
    ProcessIdentity,
    read_process,
)
from llmgw.agent.scopes import Scopes
from llmgw.engines.base import ProcessPlan
from llmgw.hardware.engine_user import Account


@dataclass
class Child:
    """A process that this agent started. It stays unreaped (its pid held) until `reap`."""

    popen: subprocess.Popen[bytes]
    identity: ProcessIdentity

    def exit_code(self) -> int | None:
        """The code, negative for a signal, without reaping; None while it runs."""
        if self.popen.returncode is not None:
            return self.popen.returncode
        try:
            result = os.waitid(os.P_PID, self.identity.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if result is None or not result.si_pid:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def reap(self) -> None:
        """Let the kernel forget a process that has ended; nothing while it runs."""
        self.popen.poll()


def spawn(
    plan: ProcessPlan,
    *,
    shard_id: str,
    work_dir: str,
    node_id: str,
    gpus: Sequence[str],
    folder: Path,
    log: Path,
    account: Account | None = None,
    scopes: Scopes | None = None,
) -> Child:
    """Start one process in `folder`, in a session (and, where there are scopes, a scope) of its own, marked.

    It runs as the account's user (None: this one's), its output appended to `log`, which the agent alone opens.
    `gpus` are the shard's, by UUID.

    Raises OSError when the program cannot be started. Blocking until the exec has happened.
    """
    markers = {MARKER: shard_id, WORK_DIR_MARKER: work_dir, NODE_MARKER: node_id, GPUS_MARKER: ",".join(gpus)}
    env = {**plan.env, **markers, KEEP_ENVIRONMENT: "1"}
    # Append mode: a file outlives the agent where a pipe would not, and copy-and-truncate rotation needs it.
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    scoped = scopes.wrap(plan.argv, shard_id, plan.name, account) if scopes is not None else None
    become = account.popen_arguments() if account is not None and scoped is None else {}
    try:
        popen = subprocess.Popen(
            scoped or plan.argv,
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **become,  # type: ignore[call-overload]
        )
    finally:
        os.close(output)
    # Not reaped yet, so its row exists even if it has died already.
    info = read_process(popen.pid)
    return Child(popen, ProcessIdentity(popen.pid, info.start_ticks if info else 0))
