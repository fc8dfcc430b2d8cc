"""Ports, answers and a book on a made clock, for the pure half of watching fabrics."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from llmgw.fabric.managers import read_managers
from llmgw.messages.agent import Port
from llmgw.messages.fabric import FabricText
from llmgw.server.fabrics.book import FabricBook
from llmgw.server.fabrics.comparing import compare_map
from llmgw.server.fabrics.known import FabricMap, KnownFabric
from llmgw.server.fabrics.reading import map_of
from llmgw.server.fabrics.usable_ports import PortAt, UsablePort
from llmgw.server.store.fabric_records import FabricChange
from tests.fabric.generate import Fabric, Made
from tests.fabric.smir import MASTER, STANDBY, smir

M1, M2, M3 = 0x0C42A10300009901, 0x0C42A10300009902, 0x0C42A10300009903
SILENT = "Query SA failed: Connection timed out"
NO_MANAGER = "sa_get_handle: No SM/SA found on port (null):0"


def packed(text: str, **changes: object) -> FabricText:
    """A tool's answer."""
    return FabricText(request_id="r", output=zlib.compress(text.encode()), exit_code=0, **changes)  # type: ignore[arg-type]


def managers(*guids: int) -> str:
    """The first is the master, with LID 1."""
    rest = [(guid, at, 12, STANDBY) for at, guid in enumerate(guids[1:], 7)]
    return smir((guids[0], 1, 14, MASTER), *rest)


def usable(node: str, adapter: Made, name: str = "ib-a", rail: int = 0, **changes: object) -> UsablePort:
    """A port of a node that is an adapter of a map."""
    guid = f"{adapter.guid:016x}"
    fields = {"sm_lid": 1, "state": "ACTIVE", "link_layer": "InfiniBand", "rate_gbps": 400.0, **changes}
    port = Port(adapter=f"mlx5_{rail}", port=1, node_guid=guid, port_guid=guid, **fields)  # type: ignore[arg-type]
    return UsablePort(PortAt(node, f"mlx5_{rail}", 1), name, port, True)


class Watched:
    """A book that is told what is asked of it, on a clock of its own."""

    def __init__(self, ports: Sequence[UsablePort]) -> None:
        self.book = FabricBook()
        self.ports = list(ports)
        self.now = 1000.0
        self.changes: list[FabricChange] = []
        self.look()

    def look(self, later_s: float = 0.0) -> None:
        self.now += later_s
        self.book.look(self.ports, [], self.now)

    def say(self, text: str, name: str = "ib-a", later_s: float = 60.0) -> None:
        """The managers of every master under a name answer this."""
        self.look(later_s)
        for master in self.book.masters():
            if master.name == name:
                self.changes += self.book.managers_said(master, read_managers(text), self.now)
        self.look()

    def map(self, text: str, name: str = "ib-a") -> list[KnownFabric]:
        """Every target under a name is mapped."""
        self.look(1.0)
        found = []
        for target, ports in self.book.map_targets().items():
            names = {usable.name for usable in self.ports if usable.at in ports}
            if name not in names:
                continue
            read = map_of(packed(text), (), {}, {})
            fabric = self.book.identify(target, name, read.switches, read.guids)
            assert fabric is not None
            compared = compare_map(read.cabling, fabric.cabling, fabric.accepted)
            made = FabricMap(self.now, str(ports[0]), read.analysis)
            self.changes += self.book.mapped(fabric, made, compared.kept, compared.changes, compared.differences)
            found.append(fabric)
        self.look()
        return found

    def checks(self) -> list[str]:
        return [finding.check for finding in self.book.findings(self.now)]

    def only(self) -> KnownFabric:
        (fabric,) = [fabric for fabric in self.book.known.values() if fabric.names]
        return fabric


def ports_of(made: Fabric, name: str = "ib-a", rails: int = 2) -> list[UsablePort]:
    """The ports of nodes `n1`, `n2`, … that are the adapters of a generated map."""
    return [usable(f"n{at // rails + 1}", adapter, name, at % rails) for at, adapter in enumerate(made.adapters)]
