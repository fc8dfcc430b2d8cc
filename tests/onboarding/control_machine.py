"""A machine to be made a control host: a folder for its root, and a systemd that keeps state and can fail."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from llmgw.cli.server_install import unit_arguments
from llmgw.config.load import load_server_config
from llmgw.config.server import ServerConfig
from llmgw.onboarding.control_host import ControlWish, Installed, install
from llmgw.onboarding.local_host import LocalHost, Ran

NOW = 1_900_000_000.0
SERVER = "llmgw-server.service"
SOCKET = "llmgw-router.socket"


class Machine:
    """`fails`: the commands (joined) that do not work, and what they say."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "run/systemd/system").mkdir(parents=True)
        (root / "usr/local/bin").mkdir(parents=True)
        (root / "usr/local/bin/llmgw").write_text("the program\n")
        self.users: set[str] = set()
        self.passwd = ""
        """What is in the user database of the user llmgw before anything is installed."""
        self.fails: dict[str, str] = {}
        self.ran: list[str] = []
        self.busy: dict[int, str] = {}
        self.elsewhere: set[str] = set()
        """Addresses that are other machines'."""
        self.journal = ""
        self.active: dict[str, float] = {}
        """Unit → when it was started."""
        self.enabled: set[str] = set()
        self.read: dict[str, str] = {}
        """The unit files as systemd last read them."""
        self.host = LocalHost(
            root,
            run=self._run,
            ids=self._ids,
            wall_of=lambda at: at,
            listening=self.busy.get,
            has_address=lambda host: host not in self.elsewhere,
        )

    def install(self, *, dry_run: bool = False, **wish: object) -> Installed:
        own = {"own_hosts": ("gw1.lan", "gw1", "10.0.0.1"), "own_name": "gw1.lan"}
        return install(
            ControlWish(**{**own, **wish}),  # type: ignore[arg-type]
            self.host,
            load=lambda path: load_server_config(path, {}),
            router_arguments=unit_arguments,
            now=NOW,
            dry_run=dry_run,
            say=lambda what: None,
        )

    def config(self) -> ServerConfig:
        return load_server_config(self.root / "etc/llmgw/server.yaml", {})

    def edit(self, change: Callable[[str], str]) -> None:
        """The operator's hand on server.yaml."""
        path = self.root / "etc/llmgw/server.yaml"
        path.write_text(change(path.read_text()))

    def text(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def tree(self) -> dict[str, tuple[int, bytes | None]]:
        """Every file and folder with its mode and content."""
        return {
            str(path.relative_to(self.root)): (
                path.lstat().st_mode,
                path.read_bytes() if path.is_file() else None,
            )
            for path in sorted(self.root.rglob("*"))
        }

    def age(self, path: str, seconds: float) -> None:
        """Have a file be so much older than now."""
        at = NOW - seconds
        os.utime(self.root / path.lstrip("/"), (at, at))

    def _ids(self, owner: str) -> tuple[int, int] | None:
        names = set(owner.split(":")) - {"root"}
        return (os.getuid(), os.getgid()) if names <= self.users else None

    def _run(self, argv: Sequence[str], stdin: str | None) -> Ran:
        command = " ".join(argv)
        self.ran.append(command)
        for part, said in self.fails.items():
            if part in command:
                return Ran(1, "", said)
        match list(argv):
            case ["getent", "group", _]:
                return Ran(2, "", "")
            case ["getent", "passwd", _]:
                return Ran(0, self.passwd, "") if self.passwd else Ran(2, "", "")
            case ["groupadd", *_, name]:
                self.users.add(name)
            case ["useradd", *_, name]:
                self.users.add(name)
            case ["journalctl", *_]:
                return Ran(0, self.journal, "")
            case ["systemctl", "show", *rest]:
                return Ran(0, self._show(rest[rest.index("--") + 1 :]), "")
            case ["systemctl", "daemon-reload"]:
                self.read = self._units()
            case ["systemctl", "enable", *rest]:
                self.enabled |= set(rest[rest.index("--") + 1 :])
                wants = self.root / "etc/systemd/system/multi-user.target.wants"
                wants.mkdir(exist_ok=True)
                for unit in self.enabled:
                    (wants / unit).touch()
            case ["systemctl", "disable", *rest]:
                self.active.pop(rest[-1], None)
                self.enabled.discard(rest[-1])
                (self.root / "etc/systemd/system/multi-user.target.wants" / rest[-1]).unlink()
            case ["systemctl", ("start" | "restart"), "--", unit]:
                self._begin(unit)
            case ["systemctl", "stop", "--", *units]:
                for unit in units:
                    self.active.pop(unit, None)
            case _:
                return Ran(127, "", f"what is {command}?")
        return Ran(0, "", "")

    def _begin(self, unit: str) -> None:
        # Later than everything that was written until now; whole microseconds, as systemd counts.
        newest = self.host.newest([f"/{name}" for name in self.tree()])
        self.active[unit] = (math.ceil(newest * 1_000_000) + 1) / 1_000_000
        self.read = self.read or self._units()

    def _units(self) -> dict[str, str]:
        folder = self.root / "etc/systemd/system"
        return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("llmgw*/*.conf")} | {
            p.name: p.read_text() for p in folder.glob("llmgw*") if p.is_file()
        }

    def _show(self, units: Sequence[str]) -> str:
        blocks = []
        unread = self._units() != self.read
        for unit in units:
            listen = self.read.get(f"{SOCKET}.d/listen.conf", "").rpartition("ListenStream=")[2].strip()
            known = bool(self.read)
            blocks.append(
                f"Id={unit}\nActiveState={'active' if unit in self.active else 'inactive'}\n"
                f"UnitFileState={('enabled' if unit in self.enabled else 'disabled') if known else ''}\n"
                f"NeedDaemonReload={'yes' if known and unread else 'no'}\n"
                f"ExecMainStartTimestampMonotonic={round(self.active.get(unit, 0) * 1_000_000)}\n"
                + (f"Listen={listen} (Stream)\n" if unit == SOCKET else "")
            )
        return "\n".join(blocks)
