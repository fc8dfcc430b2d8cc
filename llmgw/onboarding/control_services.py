"""The control host's services: enabled, started, and restarted where what they were started from has changed.

A restart costs no request: the socket stays with systemd, and routers finish what they have, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmgw.config.addresses import split_host_port
from llmgw.config.server import ServerConfig
from llmgw.onboarding.control_units import Units, enabled_routers, router_unit, stream_address
from llmgw.onboarding.local_host import Action, ControlHostError, LocalHost
from llmgw.release.layout import ROUTER_SOCKET, SERVER_UNIT

_PROPERTIES = (
    "Id",
    "ActiveState",
    "UnitFileState",
    "NeedDaemonReload",
    "Listen",
    "ExecMainStartTimestampMonotonic",
)
_LINES_OF_LOG = 20
# Who has the ports of a control host that runs, as psutil names it: systemd, and what it passed its socket to.
_OWN_LISTENERS = ("llmgw (", "systemd (")

State = Mapping[str, str]


def states(host: LocalHost, units: Sequence[str]) -> dict[str, State]:
    """What systemd says of units, by name. Raises ControlHostError."""
    argv = ["systemctl", "show", *(f"--property={name}" for name in _PROPERTIES), "--", *units]
    text = host.command(argv, "systemd does not answer")
    found: dict[str, State] = {}
    for block in text.strip().split("\n\n"):
        state = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in state:
            found[state["Id"]] = state
    return {unit: found.get(unit, {}) for unit in units}


def refuse_addresses_of_others(host: LocalHost, config: ServerConfig) -> None:
    """Raise ControlHostError for an address that this machine does not have: nothing could listen there."""
    for setting, address in _listeners(config):
        name = split_host_port(address)[0]
        if not host.has_address(name):
            raise ControlHostError(
                f"{name} is no address of this machine ({setting}: {address}); choose one of its own, or 0.0.0.0 "
                f"or [::] for all of them{' with --listen' if setting == 'listen' else ' in server.yaml'}."
            )


def refuse_busy_ports(host: LocalHost, config: ServerConfig) -> None:
    """Raise ControlHostError when somebody else listens where the control host should."""
    now = states(host, [ROUTER_SOCKET, SERVER_UNIT])
    for setting, address in _listeners(config):
        port = split_host_port(address)[1]
        who = host.listening(port)
        unit = ROUTER_SOCKET if setting == "listen" else SERVER_UNIT
        runs = now[unit].get("ActiveState") in ("active", "activating", "reloading")
        # One that runs may have the port already, and may not have it yet when it is to move there.
        if who is not None and not (runs and who.startswith(_OWN_LISTENERS)):
            raise ControlHostError(
                f"Port {port} of this machine is taken ({setting}: {address}): {who}. Stop that, or choose "
                f"another port{' with --listen' if setting == 'listen' else ' in server.yaml'}."
            )


def _listeners(config: ServerConfig) -> list[tuple[str, str]]:
    """Setting and address of all that this host will listen on."""
    agents = [] if config.agents.tls is None else [("agents.listen", config.agents.listen)]
    return [("listen", config.listen), ("admin.listen", config.admin.listen), *agents]


def leave_old_address(host: LocalHost, units: Units) -> list[Action]:
    """Close a socket that listens elsewhere than it should, before systemd reads its unit again.

    systemd restarts no socket whose service runs, and one that is reloaded with another address while it is open
    has none of the two afterwards (seen with systemd 252).
    """
    state = states(host, [ROUTER_SOCKET])[ROUTER_SOCKET]
    if state.get("ActiveState") != "active" or _listens(state, units.listen):
        return []
    routers = dict.fromkeys([*units.names_of_routers, *(router_unit(n) for n in enabled_routers(host))])
    argv = ["systemctl", "stop", "--", ROUTER_SOCKET, *routers]
    what = (
        f"end the routers, for which their requests are let end, and close their socket, to open {units.listen}"
    )
    return [_systemctl(host, what, argv)]


def reload_and_enable(host: LocalHost, units: Units) -> list[Action]:
    """Have systemd read what was written, and start it with the machine."""
    actions: list[Action] = []
    now = states(host, units.names)
    if any(_unread(state) for state in now.values()):
        argv = ["systemctl", "daemon-reload"]
        actions.append(_systemctl(host, "have systemd read its units again", argv))
    off = [name for name in units.names if now[name].get("UnitFileState") != "enabled"]
    if off:
        argv = ["systemctl", "enable", "--quiet", "--", *off]
        actions.append(_systemctl(host, f"enable {', '.join(off)}", argv))
    return actions


def start(host: LocalHost, units: Units) -> list[Action]:
    """Start what does not run, and restart what was started from something older than its files are."""
    now = states(host, units.names)
    surplus = units.surplus()
    actions: list[Action] = []
    for unit in units.names:
        if now[unit].get("ActiveState") not in ("active", "reloading"):
            actions.append(_start(host, unit, "start"))
        elif unit != ROUTER_SOCKET and _is_older(host, units, unit, now[unit]):
            actions.append(_start(host, unit, "restart"))
    actions += [
        _systemctl(host, f"end {unit}, which is one too many", ["systemctl", "disable", "--now", "--quiet", unit])
        for unit in surplus
    ]
    return actions


def last_words(host: LocalHost, unit: str) -> str:
    """Why a unit does not run, by its log: its own sentence, else its last lines."""
    argv = [
        "journalctl",
        "--unit",
        unit,
        "--lines",
        str(_LINES_OF_LOG),
        "--output",
        "cat",
        "--no-pager",
        "--quiet",
    ]
    lines = [line.strip() for line in host.run(argv, None).out.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("error: ")]
    return " ".join(own[-1:] or lines[-3:]) or f"its log is empty; see systemctl status {unit}"


def _start(host: LocalHost, unit: str, verb: str) -> Action:
    def do() -> None:
        ran = host.run(["systemctl", verb, "--", unit], None)
        if ran.code != 0:
            raise ControlHostError(
                f"{unit} did not {verb}: {last_words(host, unit)} (When that is put right, run this again.)"
            )

    waits = ", which lets its requests end" if verb == "restart" and unit != SERVER_UNIT else ""
    return Action(f"{verb} {unit}{waits}", do)


def _systemctl(host: LocalHost, what: str, argv: Sequence[str]) -> Action:
    def do() -> None:
        host.command(argv, f"systemd did not {what}")

    return Action(what, do)


def _unread(state: State) -> bool:
    """True when systemd knows a unit otherwise than its files say, or not at all."""
    return state.get("NeedDaemonReload") == "yes" or not state.get("UnitFileState")


def _listens(state: State, listen: str) -> bool:
    # "127.0.0.1:8080 (Stream)"
    return state.get("Listen", "").partition(" ")[0] == stream_address(listen)


def _is_older(host: LocalHost, units: Units, unit: str, state: State) -> bool:
    # Microseconds; files have the wall's time.
    began_us = int(state.get("ExecMainStartTimestampMonotonic") or 0)
    return bool(began_us) and host.newest(units.made_from(unit)) > host.wall_of(began_us / 1_000_000)
