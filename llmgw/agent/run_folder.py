"""The folder that a shard's processes run in, below the shard's own, and the files that a plan wants there.

The shard's folder is the agent's: its description and its output must not be a user's that could put a link in
their place, and have root write through it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from llmgw.engines.base import LaunchPlan, PlanFile
from llmgw.hardware.engine_user import Account


class NotReady(Exception):
    """The shard cannot be started; the message is a sentence."""


def run_folder(folder: Path) -> Path:
    """Where the processes of the shard with this folder run."""
    return folder / "run"


def prepare(folder: Path, plan: LaunchPlan, account: Account | None) -> None:
    """Make the run folder with the plan's files, all of them the account's (None: the agent's own) and its alone.

    `folder` is the shard's, below the one of all shards in the work dir. Raises NotReady. Blocking.
    """
    run = run_folder(folder)
    try:
        run.mkdir(mode=0o700, exist_ok=True)
        if account is not None:
            _let_pass(folder)
            os.chown(run, account.uid, account.gid)
        for file in plan.files:
            _write(run, file, account)
    except OSError as exc:
        raise NotReady(
            f"the shard's folder {run} cannot be made ready: {exc.strerror}; look at the disk that holds "
            "supervisor.work_dir"
        ) from None
    if account is not None:
        if account.unreadable([str(run)]):
            raise NotReady(
                f"the user {account.name} that engines run as does not get to {run}; let others pass through the "
                "folders above supervisor.work_dir (chmod o+x), or set another work_dir in agent.yaml"
            )
        _check_access(plan, account)


def check_way(folder: Path, target: Path, account: Account) -> None:
    """Whether the account will get to a file that is still to be fetched to `target`.

    `folder` is the shard's. Raises NotReady: before hours of a download, not after. Blocking.
    """
    existing = target.parent
    try:
        _let_pass(folder)
        while not existing.exists():
            existing = existing.parent
    except OSError as exc:
        raise NotReady(f"{exc.filename or existing} cannot be used: {exc.strerror}; look at its disk") from None
    if account.cannot_run(str(existing)):
        raise NotReady(
            f"the user {account.name} that engines run as does not get to {existing}, and the model would be "
            "fetched below it; let others pass through it and the folders above it (chmod o+x), or set another "
            "weights.dir in agent.yaml"
        )


def _let_pass(folder: Path) -> None:
    for above in (folder, folder.parent, folder.parent.parent):
        # To pass through, not to list: names of shards are no secret, what lies there is closed itself.
        above.chmod(0o711)


def _write(run: Path, file: PlanFile, account: Account | None) -> None:
    path = Path(file.path)
    if path.parent != run:
        raise NotReady(f"the engine's plan wants to write {path}, which is not in the shard's folder {run}")
    path.unlink(missing_ok=True)
    # A file that is new for certain: nothing that was put in its place is written through.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as out:
        if account is not None:
            os.fchown(fd, account.uid, account.gid)
        out.write(file.content)


def _check_access(plan: LaunchPlan, account: Account) -> None:
    """What a command line names by its path must be readable: engines say this late, and in many words."""
    for process in [*plan.sidecars, plan.engine]:
        program, *words = process.argv
        if program.startswith("/") and account.cannot_run(program):
            raise NotReady(
                f"the user {account.name} that engines run as may not run {program}; give it and the folders "
                "above it to others to read and run (chmod o+rX), or install the engine elsewhere"
            )
        named = _named_paths(words)
        unreadable = account.unreadable(named)
        if unreadable:
            raise NotReady(
                f"the user {account.name} that engines run as may not read {unreadable[0]}; give it and the "
                "folders above it to others to read (chmod o+rX), or name another supervisor.engine_user"
            )


def _named_paths(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith("/") and os.path.exists(word)]
