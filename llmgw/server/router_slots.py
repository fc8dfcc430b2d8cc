"""Which routers live on a state folder: those that hold their lock. No pid can lie about that."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from llmgw.messages.router_files import RouterFiles, is_worker_name, worker_name


def lives(files: RouterFiles) -> bool:
    """True while a process holds this worker's lock."""
    try:
        descriptor = os.open(files.lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def living(state: Path) -> list[str]:
    """The names of the workers that live, whoever started them."""
    names = sorted(path.stem for path in state.glob("router*.lock") if is_worker_name(path.stem))
    return [name for name in names if lives(RouterFiles(state, name))]


def free_name(state: Path, taken: set[str]) -> str:
    """The first name that no worker has."""
    number = 0
    while worker_name(number) in taken or lives(RouterFiles(state, worker_name(number))):
        number += 1
    return worker_name(number)


def lock_holder(files: RouterFiles) -> str:
    """The pid that the worker wrote into its lock, for people."""
    try:
        return files.lock.read_text().strip() or "PID"
    except OSError:
        return "PID"
