"""The user that engines run as when the agent is root: who it is, its groups, and what it can read.

An engine runs what a model's author wrote. As root it could read every key of the node; as a user of its own it
can read what is given to it, and use the GPUs and adapters whose device files its groups may open.
"""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw.config.agent import DEFAULT_ENGINE_USER
from llmgw.config.errors import SentenceError

# Device files of GPUs (NVIDIA, AMD and the DRM nodes of both) and of InfiniBand and RoCE adapters.
_DEVICES = ("nvidia*", "nvidia-caps/*", "infiniband/*", "dri/*", "kfd")
_DEVICE_GROUPS = ("render", "video")
_TEST_TIMEOUT_S = 10.0


class EngineUserError(SentenceError):
    """The user that engines should run as cannot be used; the message is a sentence."""


@dataclass(frozen=True)
class Account:
    """A user that engines run as, as the user database has it."""

    name: str
    uid: int
    gid: int
    home: str

    def groups(self, dev: Path = Path("/dev")) -> list[int]:
        """Its supplementary groups now: its own, and those that may use GPUs and adapters. Never root's."""
        found = set(os.getgrouplist(self.name, self.gid))
        for device in _devices(dev):
            try:
                stat = device.stat()
            except OSError:
                continue
            if stat.st_mode & 0o060 == 0o060 and stat.st_mode & 0o006 != 0o006:
                found.add(stat.st_gid)
        for name in _DEVICE_GROUPS:
            try:
                found.add(grp.getgrnam(name).gr_gid)
            except KeyError:
                pass
        return sorted(found - {0})

    def home_or(self, folder: Path) -> str:
        """Its home where that is there and its own (engines keep what they compiled there), else `folder`."""
        try:
            own = os.stat(self.home).st_uid == self.uid
        except OSError:
            own = False
        return self.home if own else str(folder)

    def popen_arguments(self) -> dict[str, int | list[int]]:
        """What makes `subprocess.Popen` start a process as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups()}

    def unreadable(self, paths: Iterable[str]) -> list[str]:
        """Those of `paths` that the user may not read, as the kernel says: access lists count. Blocking."""
        return self._fails("-r", list(paths))

    def cannot_run(self, program: str) -> bool:
        """True when the user may not execute a program, given by its path. Blocking."""
        return bool(self._fails("-x", [program]))

    def closed_devices(self, dev: Path = Path("/dev")) -> list[str]:
        """Device files of GPUs and adapters that the user may not open for reading and writing. Blocking."""
        devices = [str(path) for path in _devices(dev) if not path.is_dir()]
        return list(dict.fromkeys([*self._fails("-r", devices), *self._fails("-w", devices)]))

    def _fails(self, test: str, paths: Sequence[str]) -> list[str]:
        if not paths:
            return []
        script = f'for path; do test {test} "$path" || printf "%s\\0" "$path"; done'
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", script, "sh", *paths],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                timeout=_TEST_TIMEOUT_S,
                check=False,
                **self.popen_arguments(),  # type: ignore[call-overload]
            )
        except (OSError, subprocess.SubprocessError):
            return []  # not known: the engine will say it
        return [os.fsdecode(path) for path in done.stdout.split(b"\0") if path]


def find_account(
    wanted: str | None, euid: int, find: Callable[[str], pwd.struct_passwd] = pwd.getpwnam
) -> Account | None:
    """The user that engines run as, or None for the agent's own. Raises EngineUserError.

    `wanted` is `supervisor.engine_user`. Without it, root's engines run as `llmgw-engine` where that user exists.
    """
    name = wanted
    if name is None:
        if euid != 0:
            return None
        name = DEFAULT_ENGINE_USER
    try:
        entry = find(name)
    except KeyError:
        if wanted is None:
            return None
        raise EngineUserError(
            f"supervisor.engine_user names {name}, and this node has no such user; make it with "
            f"useradd --system --create-home {name}, or correct the name in agent.yaml"
        ) from None
    if entry.pw_uid == euid:
        return None
    if euid != 0:
        raise EngineUserError(
            f"supervisor.engine_user names {name}, and only root starts processes as another user; run the agent "
            "as root, or take supervisor.engine_user out of agent.yaml"
        )
    return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, home=entry.pw_dir)


def _devices(dev: Path) -> list[Path]:
    return sorted(path for pattern in _DEVICES for path in dev.glob(pattern))
