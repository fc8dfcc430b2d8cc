"""The control host's units: as they are released, with what server.yaml says of routers in a file beside each."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmgw.config.addresses import join_host_port, split_host_port
from llmgw.onboarding.local_host import Action, ControlHostError, LocalHost
from llmgw.release.layout import (
    PROGRAM,
    ROUTER_SOCKET,
    ROUTER_UNIT,
    SERVER_CONFIG,
    SERVER_STATE,
    SERVER_UNIT,
    UNITS,
)
from llmgw.release.units import unit_text

ROUTERS_MAX = 256
SOCKET_ADDRESS = f"{UNITS}/{ROUTER_SOCKET}.d/listen.conf"
ROUTER_SETTINGS = f"{UNITS}/{ROUTER_UNIT}.d/settings.conf"
_WRITTEN_BY = "# By `llmgw server install`, from server.yaml; run it again after changes there.\n"
_INSTANCE = re.compile(r"llmgw-router@([0-9]{1,4})\.service")
# A router ends when its requests have, and a little later at the latest.
_STOP_MARGIN_S = 15


@dataclass(frozen=True)
class Units:
    """`listen` is the model API's address, `arguments` what every router is told of the configuration."""

    host: LocalHost
    listen: str
    routers: int
    arguments: Sequence[str]

    @property
    def names_of_routers(self) -> list[str]:
        """The routers' units, instance by instance."""
        return [router_unit(number) for number in range(self.routers)]

    @property
    def names(self) -> list[str]:
        """All units, in the order in which they are started."""
        return [ROUTER_SOCKET, SERVER_UNIT, *self.names_of_routers]

    def surplus(self) -> list[str]:
        """Routers that are enabled and no longer wanted."""
        return [router_unit(number) for number in enabled_routers(self.host) if number >= self.routers]

    def made_from(self, unit: str) -> list[str]:
        """The files that a running unit was started from: one that is newer means a restart."""
        if unit == SERVER_UNIT:
            return [PROGRAM, SERVER_CONFIG, f"{UNITS}/{SERVER_UNIT}"]
        return [PROGRAM, f"{UNITS}/{ROUTER_UNIT}", ROUTER_SETTINGS]

    def write(self) -> list[Action]:
        """The unit files that differ from what they should be."""
        actions: list[Action] = []
        for name in (SERVER_UNIT, ROUTER_UNIT, ROUTER_SOCKET):
            actions += self.host.file(f"{UNITS}/{name}", unit_text(name), 0o644)
        actions += self.host.file(SOCKET_ADDRESS, self.socket_text(), 0o644)
        actions += self.host.file(ROUTER_SETTINGS, self.settings_text(), 0o644)
        return actions

    def socket_text(self) -> str:
        """Where the socket listens. Raises ControlHostError for what systemd cannot take (systemd.socket(5))."""
        return f"{_WRITTEN_BY}[Socket]\nListenStream=\nListenStream={stream_address(self.listen)}\n"

    def settings_text(self) -> str:
        """How each router is started."""
        argv = [PROGRAM, "router", f"--state={SERVER_STATE}", "--worker=%i", f"--share-of={self.routers}"]
        line = " ".join([*argv, *(escaped(argument) for argument in self.arguments)])
        drain_s = next((float(a.partition("=")[2]) for a in self.arguments if a.startswith("--drain-s=")), 60.0)
        return (
            f"{_WRITTEN_BY}[Service]\nExecStart=\nExecStart={line}\n"
            f"# Longer than --drain-s: streams are let end.\nTimeoutStopSec={int(drain_s) + _STOP_MARGIN_S}\n"
        )


def router_unit(number: int) -> str:
    """The unit of one router."""
    return f"llmgw-router@{number}.service"


def default_routers() -> int:
    """One for two of this machine's cores."""
    return max(1, (os.cpu_count() or 1) // 2)


def routers_until_now(host: LocalHost) -> int:
    """How many the host has been set up with before; where it has not been, the default."""
    found = re.search(r"--share-of=([0-9]{1,4})\b", host.text(ROUTER_SETTINGS) or "")
    return int(found[1]) if found and int(found[1]) > 0 else default_routers()


def enabled_routers(host: LocalHost) -> list[int]:
    """The instances that start with the machine."""
    try:
        names = [entry.name for entry in host.path(f"{UNITS}/multi-user.target.wants").iterdir()]
    except OSError:
        return []
    return sorted(int(found[1]) for name in names if (found := _INSTANCE.fullmatch(name)))


def stream_address(listen: str) -> str:
    """An address as ListenStream= takes it: numbers only, and of IPv6 in brackets."""
    host, port = split_host_port(listen)
    if host == "localhost":
        host = "127.0.0.1"
    if port == 0 or not _is_number(host):
        raise ControlHostError(
            f"listen: {listen} is nothing that a socket unit can listen on; write an address and a port, such as "
            "0.0.0.0:8080, 10.0.0.1:8080 or [::]:8080."
        )
    return join_host_port(host, port)


def _is_number(host: str) -> bool:
    try:
        return "%" not in host and bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def escaped(argument: str) -> str:
    """An argument as ExecStart= takes it (systemd.service(5), "Command lines")."""
    text = argument.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./*$-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
