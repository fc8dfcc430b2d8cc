"""The lab's network: a bridge in a namespace of its own, a namespace and a cable for each machine."""

from __future__ import annotations

import ipaddress
import json
import os
from pathlib import Path
from typing import Any

from tests.lab.machines.errors import LabError
from tests.lab.machines.places import (
    AGENTS_PORT,
    BRIDGE,
    FABRIC_ADDRESS,
    FLEET,
    HOST_ADDRESS,
    HOST_LINK,
    NETWORK,
    NOBODY,
    SERVER,
    SWITCH,
    Machine,
)
from tests.lab.machines.processes import run

# The table by which packets to the other side of a cut are lost, and the number of its rule.
_LOST = "77"
_NO_MAC = "02:00:00:00:de:ad"


def make_switch() -> None:
    """Make the bridge, and the cable from this machine to it. Raises LabError."""
    _refuse_taken_network()
    _ip("netns", "add", SWITCH)
    _ip("-n", SWITCH, "link", "set", "lo", "up")
    _ip("-n", SWITCH, "link", "add", BRIDGE, "type", "bridge", "forward_delay", "0", "mcast_snooping", "0")
    _ip("-n", SWITCH, "addr", "add", f"{FABRIC_ADDRESS}/24", "dev", BRIDGE)
    _ip("-n", SWITCH, "link", "set", BRIDGE, "up")
    _ip("link", "add", HOST_LINK, "type", "veth", "peer", "name", "host", "netns", SWITCH)
    _ip("-n", SWITCH, "link", "set", "host", "master", BRIDGE, "up")
    _ip("addr", "add", f"{HOST_ADDRESS}/24", "dev", HOST_LINK)
    _ip("link", "set", HOST_LINK, "up")


def plug(machine: Machine) -> None:
    """Make a machine's namespace, with the cable to the bridge plugged in."""
    _ip("netns", "add", machine.namespace)
    _ip("-n", machine.namespace, "link", "set", "lo", "up")
    _ip(
        # The same card at each boot: others remember where they found it.
        *("-n", machine.namespace, "link", "add", "host0", "address", _mac(machine), "type", "veth"),
        *("peer", "name", machine.name, "netns", SWITCH),
    )
    _ip("-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", "host0")
    _ip("-n", machine.namespace, "link", "set", "host0", "up")
    _ip("-n", SWITCH, "link", "set", machine.name, "master", BRIDGE, "up")


def unplug(machine: Machine) -> None:
    """Pull a machine's cable: it says goodbye to nobody."""
    _ip("-n", SWITCH, "link", "set", machine.name, "down")


def plug_again(machine: Machine) -> None:
    """Put it back, and end what `cut_from_server` did."""
    _ip("-n", SWITCH, "link", "set", machine.name, "up")
    for namespace in (machine.namespace, FLEET[SERVER].namespace):
        while _lost_rules(namespace, machine):
            _ip("-n", namespace, "rule", "del", "pref", _number(machine))


def cut_from_server(machine: Machine) -> None:
    """Lose what the agent and the server's endpoint for agents say to each other, and nothing else.

    Both ways, also on connections that are open, and silently: neither side is told that anything is lost.
    """
    server = FLEET[SERVER]
    for namespace, rule in (
        (machine.namespace, ("to", server.address, "ipproto", "tcp", "dport", str(AGENTS_PORT))),
        (server.namespace, ("to", machine.address, "ipproto", "tcp", "sport", str(AGENTS_PORT))),
    ):
        _ip("-n", namespace, "neigh", "replace", NOBODY, "lladdr", _NO_MAC, "dev", "host0", "nud", "permanent")
        _ip("-n", namespace, "route", "replace", "default", "via", NOBODY, "dev", "host0", "table", _LOST)
        _ip("-n", namespace, "rule", "add", "pref", _number(machine), *rule, "table", _LOST)


def state_of(machine: Machine) -> str:
    """`up`, `cut`, `cut from server`, or `none` where there is no such machine."""
    links = _links(machine.name)
    if not links:
        return "none"
    if "UP" not in links[0]["flags"]:
        return "cut"
    return "cut from server" if _lost_rules(machine.namespace, machine) else "up"


def exists(namespace: str) -> bool:
    """Whether there is such a namespace."""
    return Path("/run/netns", namespace).exists()


def remove_machine(machine: Machine) -> None:
    """Take its cable and its namespace away."""
    # The cable first: a namespace goes away some time after it was deleted, and its cable with it.
    if _links(machine.name):
        _ip("-n", SWITCH, "link", "del", machine.name)
    if exists(machine.namespace):
        _ip("netns", "del", machine.namespace)


def remove_switch() -> None:
    """Take away the bridge and the cable to this machine."""
    if Path("/sys/class/net", HOST_LINK).exists():
        _ip("link", "del", HOST_LINK)
    if exists(SWITCH):
        _ip("netns", "del", SWITCH)


def _links(name: str) -> list[dict[str, Any]]:
    """The bridge's end of a machine's cable, if there is one."""
    links = json.loads(_ip("-n", SWITCH, "-j", "link", "show") or "[]") if exists(SWITCH) else []
    return [link for link in links if link["ifname"] == name]


def _lost_rules(namespace: str, machine: Machine) -> list[str]:
    if not exists(namespace):
        return []
    return _ip("-n", namespace, "rule", "show", "pref", _number(machine)).split("\n")[:-1]


def _mac(machine: Machine) -> str:
    return f"02:00:00:00:77:{int(machine.address.rpartition('.')[2]):02x}"


def _number(machine: Machine) -> str:
    """A number for the rules of one machine, which tells them from those of others."""
    return f"1{machine.address.rpartition('.')[2]}"


def _refuse_taken_network() -> None:
    ours = ipaddress.ip_network(f"{NETWORK}.0/24")
    for route in json.loads(_ip("-4", "-j", "route", "show") or "[]"):
        if route["dst"] != "default" and ipaddress.ip_network(route["dst"]).overlaps(ours):
            raise LabError(
                f"{ours} is in use on this machine ({route['dst']} on {route.get('dev', 'a route')}): name "
                "another network by its first three numbers, LLMGW_LAB_NETWORK=10.78.0"
            )


def _ip(*words: str) -> str:
    return run("ip", *words, what="Making the lab's network" if os.geteuid() == 0 else "Asking for the network")
