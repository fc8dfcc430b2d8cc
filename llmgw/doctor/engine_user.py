"""The user that engines run as: whether it is there, gets to its files, and may use GPUs and adapters."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from llmgw.config.agent import DEFAULT_ENGINE_USER
from llmgw.doctor.check import Node
from llmgw.engines import registry
from llmgw.hardware.engine_user import Account, EngineUserError, find_account
from llmgw.messages.findings import Finding

_WHERE = "supervisor.engine_user"
_SHOWN_MAX = 4


def check_engine_user(node: Node) -> list[Finding]:
    """Looks at the user database, at files and at device files. Silent where engines run as the agent's own user
    and that is not root."""
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
    return [*_closed_folders(node, account), *_closed_programs(node, account), *_closed_devices(node, account)]


def _closed_folders(node: Node, account: Account) -> list[Finding]:
    """Of the work dir the folders above it: the agent opens the dir itself."""
    config = node.config
    work_dir = Path(config.supervisor.work_dir).absolute()
    weights = Path(config.weights_dir).absolute()
    ways = [("supervisor.work_dir", work_dir, work_dir.parent)]
    fetches = config.engines.llamacpp is not None or config.engines.sglang is not None
    if fetches and work_dir not in weights.parents:
        ways.append(("weights.dir", weights, weights))
    findings = []
    for key, folder, way in ways:
        while not way.exists() and way != way.parent:
            way = way.parent
        if account.cannot_run(str(way)):
            findings.append(
                node.finding(
                    "engine-user-folders",
                    "error",
                    f"{key} {folder}",
                    f"the user {account.name} does not get through {way}",
                    why="Every engine that has to get there fails to start",
                    remedy="let others pass through it and the folders above it (chmod o+x), or set another "
                    f"{key}",
                )
            )
    return findings


def _closed_programs(node: Node, account: Account) -> list[Finding]:
    findings = []
    for adapter in registry.offered(node.config):
        program = shutil.which(adapter.program(node.config))
        if program is not None and account.cannot_run(os.path.abspath(program)):
            findings.append(
                node.finding(
                    "engine-user-program",
                    "error",
                    f"engines.{adapter.name}",
                    f"the user {account.name} may not run {program}",
                    why=f"Every start of {adapter.name} on this node fails",
                    remedy="give it and the folders above it to others to read and run (chmod o+rX), or install "
                    "the engine elsewhere",
                )
            )
    return findings


def _closed_devices(node: Node, account: Account) -> list[Finding]:
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
