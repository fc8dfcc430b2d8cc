"""This machine, as whoever installs on it sees it: its files below a root, its users, and its commands."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw.config.errors import SentenceError
from llmgw.config.listeners import is_own_address, listening_process
from llmgw.pki.files import write_atomic
from llmgw.release.layout import ETC, PROGRAM, SERVER_STATE, UNITS

COMMAND_TIMEOUT_S = 900.0
"""systemctl waits for routers that finish their requests."""
ROOT = "root:root"


class ControlHostError(SentenceError):
    """This machine was not made a control host; the message says why, and what to do."""


@dataclass(frozen=True)
class Action:
    """One change: what it is, in the imperative, and how it is made."""

    what: str
    do: Callable[[], None]


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """The last line of what it complained of."""
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {self.code}"


Runner = Callable[[Sequence[str], str | None], Ran]


def run_here(argv: Sequence[str], stdin: str | None = None) -> Ran:
    """Run a command to its end. Raises ControlHostError when it cannot be started or does not end."""
    try:
        done = subprocess.run(
            argv,
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise ControlHostError(f"This machine has no {argv[0]}, which installing needs; install it.") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise ControlHostError(f"{' '.join(argv)} did not work: {error}") from None
    return Ran(done.returncode, done.stdout, done.stderr)


class LocalHost:
    """`root` is where its files begin; other than `/` only for whoever looks at them without a machine."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        run: Runner = run_here,
        ids: Callable[[str], tuple[int, int] | None] | None = None,
        wall_of: Callable[[float], float] | None = None,
        listening: Callable[[int], str | None] = listening_process,
        has_address: Callable[[str], bool] = is_own_address,
    ) -> None:
        self.root = root
        self.run = run
        self._ids = ids or ids_of
        self.wall_of = wall_of or wall_of_monotonic
        self.listening = listening
        self.has_address = has_address

    def path(self, absolute: str | Path) -> Path:
        """Where a file of this host lies."""
        return self.root / str(absolute).lstrip("/")

    def check(self, dry_run: bool) -> None:
        """Raise ControlHostError unless this can be done here."""
        if self.root == Path("/") and os.geteuid() != 0:
            raise ControlHostError(
                "Only root can set up the control host"
                + (", or see what there is to do" if dry_run else "")
                + ": run it again with sudo."
            )
        if not self.path("/run/systemd/system").is_dir():  # sd_booted(3)
            raise ControlHostError(
                "This machine is not run by systemd, whose units the server and its routers are here. Start "
                "`llmgw server` by other means; it starts its own routers then (docs/routers.md)."
            )
        for place in (ETC, UNITS, PROGRAM, SERVER_STATE):
            self._refuse_read_only(place)
        state = self.path(SERVER_STATE)
        if state.is_symlink():
            raise ControlHostError(
                f"{SERVER_STATE} is a symlink, through which systemd gives a unit no state folder; make it a "
                f"folder and mount what is meant there (mount --bind {os.readlink(state)} {SERVER_STATE}, with a "
                "line in /etc/fstab), and run this again."
            )

    def _refuse_read_only(self, path: str) -> None:
        place = self.path(path)
        while not place.exists():
            place = place.parent
        if os.statvfs(place).f_flag & os.ST_RDONLY:
            raise ControlHostError(
                f"{path} would lie on a file system that is mounted read-only; remount it writable, and run this "
                "again."
            )

    def command(self, argv: Sequence[str], failed: str) -> str:
        """What a command printed. Raises ControlHostError with `failed` (what did not work) when it fails."""
        ran = self.run(argv, None)
        if ran.code != 0:
            raise ControlHostError(f"{failed} ({' '.join(argv)}): {ran.said}")
        return ran.out

    def ids(self, owner: str) -> tuple[int, int] | None:
        """User and group id of `user:group`; None while there are none."""
        return self._ids(owner)

    def text(self, path: str | Path) -> str | None:
        """A file's text; None when it is not there. Raises ControlHostError."""
        try:
            return self.path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeError) as error:
            raise ControlHostError(f"{path} cannot be read: {error}") from None

    def file(self, path: str | Path, data: str, mode: int, owner: str = ROOT) -> list[Action]:
        """What makes a file this one: nothing where it is."""
        place, wanted = self.path(path), self.ids(owner)
        if self.text(path) == data and self._is(place, mode, wanted):
            return []
        return [
            Action(f"write {path} ({owner} {mode:04o})", lambda: self.write(path, data, mode, owner)),
        ]

    def write(self, path: str | Path, data: str, mode: int, owner: str = ROOT) -> None:
        """Put a file there, whole. Raises ControlHostError."""
        place = self.path(path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, data, mode, self.ids(owner))
        except OSError as error:
            raise ControlHostError(f"{path} cannot be written: {error.strerror or error}") from None

    def folder(self, path: str | Path, mode: int, owner: str = ROOT) -> list[Action]:
        """What makes a folder with that mode and owner: nothing where it is."""
        place = self.path(path)
        if place.is_dir() and self._is(place, mode, self.ids(owner)):
            return []

        def make() -> None:
            try:
                place.mkdir(parents=True, exist_ok=True)
                if (ids := self.ids(owner)) is not None:
                    os.chown(place, *ids)
                place.chmod(mode)
            except OSError as error:
                raise ControlHostError(f"The folder {path} cannot be made: {error.strerror or error}") from None

        return [Action(f"make the folder {path} ({owner} {mode:04o})", make)]

    def newest(self, paths: Sequence[str]) -> float:
        """When the latest of these files was put there, in seconds since the epoch; 0 when there is none.

        Of a symlink it is the link itself that counts.
        """
        times = [0.0]
        for path in paths:
            try:
                times.append(self.path(path).lstat().st_mtime)
            except OSError:
                continue
        return max(times)

    def _is(self, place: Path, mode: int, ids: tuple[int, int] | None) -> bool:
        found = place.stat()
        return stat.S_IMODE(found.st_mode) == mode and ids == (found.st_uid, found.st_gid)


def ids_of(owner: str) -> tuple[int, int] | None:
    """User and group id of `user:group` by the user database; None while it lacks one."""
    user, _, group = owner.partition(":")
    try:
        return pwd.getpwnam(user).pw_uid, grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def wall_of_monotonic(at_s: float) -> float:
    """A time of CLOCK_MONOTONIC, which systemd counts by, in seconds since the epoch."""
    # In this order, a pause between the two makes it later, and nothing that runs look older than its files.
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    return time.time() - (now - at_s)
