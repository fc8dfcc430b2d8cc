"""The InfiniBand ports through which fabrics can be asked, and those that cannot say a master. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmgw.fleet.model import Fleet, Node, NodeState
from llmgw.messages.agent import Port

FEATURE = "fabric_tools"


@dataclass(frozen=True, slots=True, order=True)
class PortAt:
    """A port of a node."""

    node: str
    adapter: str
    port: int

    def __str__(self) -> str:
        return f"{self.node} {self.adapter}:{self.port}"


@dataclass(frozen=True, slots=True)
class UsablePort:
    """A port that carries a fabric. `askable`: its node's agent can run the fabric's tools."""

    at: PortAt
    name: str
    """The operator's name of the fabric."""
    port: Port
    askable: bool


def usable_ports(fleet: Fleet) -> list[UsablePort]:
    """Every InfiniBand port that a ready node offers a fabric on, by fabric, node and order of the adapters."""
    found = []
    for node in _ready(fleet):
        by_name = {f"{port.adapter}:{port.port}": port for port in node.inventory.ports}
        askable = FEATURE in node.features
        for offer in node.inventory.fabrics:
            if not offer.usable:
                continue
            for name in offer.adapters:
                port = by_name.get(name)
                if port is not None and port.link_layer == "InfiniBand":
                    at = PortAt(node.node_id, port.adapter, port.port)
                    found.append(UsablePort(at, offer.name, port, askable))
    return sorted(found, key=lambda usable: (usable.name, usable.at.node))


def ports_in_init(fleet: Fleet) -> list[tuple[PortAt, Port, list[str]]]:
    """InfiniBand ports that are up and that no manager has configured, with the fabrics that may be theirs."""
    found = []
    for node in _ready(fleet):
        names = [offer.name for offer in node.inventory.fabrics if not offer.usable]
        found += [
            (PortAt(node.node_id, port.adapter, port.port), port, names)
            for port in node.inventory.ports
            if port.state == "INIT" and port.link_layer == "InfiniBand"
        ]
    return found


def link_layers(fleet: Fleet) -> dict[str, str]:
    """The operator's name of a fabric → `InfiniBand` or `Ethernet`, as far as a usable port tells it."""
    found: dict[str, str] = {}
    for node in fleet.nodes.values():
        by_name = {f"{port.adapter}:{port.port}": port for port in node.inventory.ports}
        for offer in node.inventory.fabrics:
            for name in offer.adapters:
                port = by_name.get(name)
                if port is not None and port.link_layer is not None:
                    found.setdefault(offer.name, port.link_layer)
    return found


def _ready(fleet: Fleet) -> Iterator[Node]:
    return (node for node in fleet.nodes.values() if node.state is NodeState.READY and node.session is not None)
