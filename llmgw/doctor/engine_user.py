"""The user that engines run as: whether it is there, and may use GPUs and adapters."""

from __future__ import annotations

import os

from llmgw.config.agent import DEFAULT_ENGINE_USER
from llmgw.doctor.check import Node
from llmgw.hardware.engine_user import EngineUserError, find_account
from llmgw.messages.findings import Finding

_WHERE = "supervisor.engine_user"
_SHOWN_MAX = 4


def check_engine_user(node: Node) -> list[Finding]:
    """Looks at the user database and at device files. Silent where engines run as the agent's own user and that
    is not root."""
    wanted = node.config.supervisor.engine_user
    try:
        account = find_account(wanted, os.geteuid())
    except EngineUserError as error:
        what, _, remedy = str(error).partition("; ")
        return [
            node.finding(
                "engine-user", "error", _WHERE, what, why="No engine is started on this node", remedy=remedy
            )
        ]
    if account is None:
        # Asked for by name, it is the operator's choice; doctor says only what nobody chose.
        if os.geteuid() != 0 or wanted is not None:
            return []
        return [
            node.finding(
                "engine-user-root",
                "info",
                _WHERE,
                "engines run as root",
                why="An engine runs what a model's author wrote, and as root it can read every key of this node",
                remedy=f"make a user for them: useradd --system --create-home {DEFAULT_ENGINE_USER}",
            )
        ]
    closed = account.closed_devices()
    if not closed:
        return []
    named = ", ".join(closed[:_SHOWN_MAX]) + (", …" if len(closed) > _SHOWN_MAX else "")
    return [
        node.finding(
            "engine-user-devices",
            "warning",
            _WHERE,
            f"the user {account.name} may not open {named}",
            why="Its engines see no GPU, or fall back from InfiniBand to TCP",
            remedy="have udev give these files to a group (such as video or rdma) that may read and write them",
        )
    ]
