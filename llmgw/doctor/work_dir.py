"""The agent's work dir: there or makeable, writable, and with room for what engines print and write."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from llmgw.doctor.check import Node
from llmgw.messages.findings import Finding

ROOM_WARN_BYTES = 1024**3
ROOM_ERROR_BYTES = 64 * 1024**2
_WHY = "Every shard's description and output are kept there; without it the agent starts nothing"


def check_work_dir(node: Node) -> list[Finding]:
    """Looks with this user's rights, so that it is true of an agent that runs as the same user."""
    path = Path(node.config.supervisor.work_dir).absolute()
    where = f"supervisor.work_dir {path}"
    folder = path
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        remedy = "move the file away, or set supervisor.work_dir in agent.yaml"
        return [node.finding("work-dir", "error", where, f"{folder} is no folder", why=_WHY, remedy=remedy)]
    if not os.access(folder, os.W_OK | os.X_OK):
        user = _user()
        verb = "be written" if folder == path else f"be made: {folder} is not writable"
        remedy = f"run doctor as the agent's user; when that is {user}: install -d -m 0700 -o {user} {path}"
        what = f"{path} cannot {verb} by {user}"
        return [node.finding("work-dir", "error", where, what, why=_WHY, remedy=remedy)]
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes >= ROOM_WARN_BYTES:
        return []
    return [
        node.finding(
            "work-dir-full",
            "error" if free_bytes < ROOM_ERROR_BYTES else "warning",
            where,
            f"{free_bytes // 1024**2} MiB are free on the file system of {folder}",
            why="Engines that cannot write their output fail, and the agent cannot keep what it holds",
            remedy=f"make room (du -xh {folder} | sort -h | tail), or set supervisor.work_dir in agent.yaml",
        )
    ]


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
