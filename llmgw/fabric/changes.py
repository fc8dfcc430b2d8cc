"""What changed between two maps: cables, rates, switches and adapters that came, went or moved."""

from __future__ import annotations

from typing import Literal

import msgspec

from llmgw.fabric.names import told_apart
from llmgw.fabric.topology import NodeKind, Topology

ChangeKind = Literal[
    "switch gone",
    "switch new",
    "adapter gone",
    "adapter new",
    "cable gone",
    "cable new",
    "cable moved",
    "rate changed",
    "renamed",
]
_LONG_KINDS: dict[NodeKind, str] = {
    "switch": "switch",
    "adapter": "adapter",
    "sharp": "SHARP node",
    "router": "router",
}


class Cable(msgspec.Struct, frozen=True):
    """One cable as it is kept: node ids of the map (`S-`, `H-`, `R-` and 16 digits), ports, and the rate."""

    a: str
    a_port: int
    b: str
    b_port: int
    rate: str

    @property
    def ends(self) -> tuple[str, int, str, int]:
        return self.a, self.a_port, self.b, self.b_port


class Device(msgspec.Struct, frozen=True):
    """A node as it is kept."""

    kind: NodeKind
    name: str | None


class Cabling(msgspec.Struct, frozen=True):
    """What of a map is kept to compare the next with, or pinned as accepted. JSON by msgspec."""

    devices: dict[str, Device]
    cables: list[Cable]
    whole: bool = True
    """False: lines or ends of cables are missing, or the tool complained: what is not there may be so still."""


class Change(msgspec.Struct, frozen=True):
    """One difference. `what` is the sentence; `node` and `port` say where, `before` and `after` what."""

    kind: ChangeKind
    what: str
    node: str
    port: int | None = None
    before: str | None = None
    after: str | None = None


def cabling_of(topology: Topology) -> Cabling:
    """What is kept of a map."""
    return Cabling(
        devices={node.id: Device(node.kind, node.name) for node in topology.nodes.values()},
        cables=[Cable(link.a.id, link.a_port, link.b.id, link.b_port, link.rate_text) for link in topology.links],
        whole=topology.whole,
    )


def compare(before: Cabling, after: Cabling) -> list[Change]:
    """Every difference, devices first. The cables of a device that came or went are told with it, not each.

    Against pinned cabling `before` is what was accepted, and every change is a finding.
    """
    return [*_devices(before, after), *_cables(before, after)]


def _devices(before: Cabling, after: Cabling) -> list[Change]:
    found = []
    for node, device in before.devices.items():
        now = after.devices.get(node)
        if now is None:
            cables = sum(node in (cable.a, cable.b) for cable in before.cables)
            found.append(_device("gone", node, device, f"is gone, with {_count(cables)}"))
        elif now.name != device.name and now.name and device.name:
            what = f"{_label(node, device)} is now called {now.name}"
            found.append(Change("renamed", what, node, None, device.name, now.name))
    for node, device in after.devices.items():
        if node not in before.devices:
            cables = sum(node in (cable.a, cable.b) for cable in after.cables)
            found.append(_device("new", node, device, f"is new, with {_count(cables)}"))
    return found


def _device(how: Literal["gone", "new"], node: str, device: Device, ending: str) -> Change:
    what = f"{_LONG_KINDS[device.kind]} {_label(node, device)} {ending}"
    if device.kind == "switch":
        return Change("switch gone" if how == "gone" else "switch new", what, node)
    return Change("adapter gone" if how == "gone" else "adapter new", what, node)


def _count(cables: int) -> str:
    return "1 cable" if cables == 1 else f"{cables} cables"


def _cables(before: Cabling, after: Cabling) -> list[Change]:
    old = {cable.ends: cable for cable in before.cables}
    new = {cable.ends: cable for cable in after.cables}
    both = before.devices.keys() & after.devices.keys()
    found = []
    for ends, cable in old.items():
        now = new.get(ends)
        if now is not None and now.rate != cable.rate:
            what = f"the cable {_cable(cable, before)} runs at {now.rate}, and ran at {cable.rate}"
            found.append(Change("rate changed", what, cable.a, cable.a_port, cable.rate, now.rate))
    gone = [cable for ends, cable in old.items() if ends not in new and cable.a in both and cable.b in both]
    came = [cable for ends, cable in new.items() if ends not in old and cable.a in both and cable.b in both]
    at_port = {(node, port): cable for cable in came for node, port in _ports(cable)}
    moved: set[tuple[str, int, str, int]] = set()
    for cable in gone:
        for node, port in _ports(cable):
            now = at_port.get((node, port))
            if now is not None and now.ends not in moved:
                moved.add(now.ends)
                was, is_now = _far(cable, node, port, before), _far(now, node, port, after)
                here = f"port {port} of {_label(node, before.devices[node])}"
                what = f"the cable in {here} led to {was}, now to {is_now}"
                found.append(Change("cable moved", what, node, port, was, is_now))
                break
        else:
            what = f"the cable {_cable(cable, before)} is gone"
            found.append(Change("cable gone", what, cable.a, cable.a_port, cable.rate))
    found += [
        Change("cable new", f"the cable {_cable(cable, after)} is new", cable.a, cable.a_port, None, cable.rate)
        for cable in came
        if cable.ends not in moved
    ]
    return found


def _ports(cable: Cable) -> tuple[tuple[str, int], tuple[str, int]]:
    return (cable.a, cable.a_port), (cable.b, cable.b_port)


def _far(cable: Cable, node: str, port: int, cabling: Cabling) -> str:
    other, other_port = (
        (cable.b, cable.b_port) if (cable.a, cable.a_port) == (node, port) else (cable.a, cable.a_port)
    )
    return f"port {other_port} of {_label(other, cabling.devices[other])}"


def _cable(cable: Cable, cabling: Cabling) -> str:
    a, b = _label(cable.a, cabling.devices[cable.a]), _label(cable.b, cabling.devices[cable.b])
    return f"from {a}[{cable.a_port}] to {b}[{cable.b_port}]"


def _label(node: str, device: Device) -> str:
    return told_apart(device.name, f"0x{node[2:]}" if " " not in node else node)
