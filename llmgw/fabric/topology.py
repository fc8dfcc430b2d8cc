"""The fabric as a graph: nodes, cables counted once, islands, and where the text contradicts itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import msgspec

from llmgw.fabric.rates import format_rate, rate_gbps
from llmgw.fabric.records import Form, PortLine, Reading, Record, guid_text

NodeKind = Literal["switch", "adapter", "sharp", "router"]

SHARP_DEVICE_ID = 0xCF09
"""Every aggregation node of five real fabrics (616 of them) has it; simulated ones have only the name."""
_SHARP_NAME = "Aggregation Node"
_RECORD_KINDS: dict[str, NodeKind] = {"S": "switch", "H": "adapter", "R": "router"}


class Node(msgspec.Struct, eq=False):
    """A switch, an adapter (HCA), a SHARP aggregation node inside a switch, or a router.

    `described` is False for a node that only its neighbours tell of. In `-p` output `guid` is a port's.
    """

    id: str
    kind: NodeKind
    guid: int | None
    name: str | None
    ports: int | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    system_guid: int | None = None
    lid: int | None = None
    described: bool = True
    port_guids: dict[int, int] = {}
    links: list[Link] = []

    @property
    def guid_text(self) -> str:
        """`0x…`, 16 digits; what the text has instead where that is no GUID (redacted)."""
        return guid_text(self.guid) or self.id.partition(" ")[0]

    @property
    def label(self) -> str:
        """Its name, or its GUID where it has none."""
        return self.name or self.guid_text


class Link(msgspec.Struct, eq=False):
    """One cable. `a` is the end with the lower id; `rate_a` is what a's own record says, None if it is silent."""

    a: Node
    a_port: int
    b: Node
    b_port: int
    rate_a: tuple[int, str] | None = None
    rate_b: tuple[int, str] | None = None
    told_by_a: bool = False
    told_by_b: bool = False

    @property
    def rate(self) -> tuple[int, str] | None:
        """The lower of what the two ends say."""
        if self.rate_a is None or self.rate_b is None:
            return self.rate_a or self.rate_b
        return min(self.rate_a, self.rate_b, key=lambda rate: rate_gbps(*rate) or 0.0)

    @property
    def rate_text(self) -> str:
        """`4xNDR`; `unknown` where neither end says."""
        return "unknown" if self.rate is None else format_rate(self.rate)

    def other(self, node: Node) -> Node:
        """The node at the far end."""
        return self.b if node is self.a else self.a

    def port_of(self, node: Node) -> int:
        """The port at that node's end (a's, for a cable from a node to itself)."""
        return self.a_port if node is self.a else self.b_port


class Contradiction(msgspec.Struct):
    """A cable of which the two ends, or two lines, say different things."""

    link: Link
    why: str


class Island(msgspec.Struct):
    """Nodes that reach each other."""

    nodes: list[Node]

    def count(self, kind: NodeKind) -> int:
        return sum(node.kind == kind for node in self.nodes)


class Topology(msgspec.Struct):
    """One map. `nodes` by id, in the text's order; `links` once each."""

    form: Form
    nodes: dict[str, Node]
    links: list[Link]
    contradictions: list[Contradiction]
    duplicate_guids: list[int]
    repeated_records: int
    unconnected_ports: int
    unread: int
    unread_shown: list[str]
    warnings: list[str]
    initiated_from: int | None = None

    def of_kind(self, kind: NodeKind) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind == kind]

    @property
    def self_links(self) -> list[Link]:
        """Cables from a node to itself (a loopback plug, or two ports of one switch)."""
        return [link for link in self.links if link.a is link.b]

    @property
    def one_sided(self) -> list[Link]:
        """Cables that only one of their two ends tells of."""
        return [link for link in self.links if not (link.told_by_a and link.told_by_b)]

    @property
    def whole(self) -> bool:
        """False: what is missing may still be there, since the text was cut, or the tool did not reach it."""
        return not (self.unread or self.warnings or self.one_sided)


def build_topology(reading: Reading) -> Topology:
    """The graph of what was read. Anything can be missing or said twice; nothing raises."""
    builder = _Builder()
    for record in reading.records:
        builder.take(record)
    contradictions = builder.contradictions()
    return Topology(
        form=reading.form,
        nodes=builder.nodes,
        links=list(builder.links.values()),
        contradictions=contradictions,
        duplicate_guids=builder.duplicate_guids(),
        repeated_records=builder.repeated,
        unconnected_ports=sum(len(record.unconnected) for record in reading.records),
        unread=reading.unread,
        unread_shown=reading.unread_shown,
        warnings=reading.warnings,
        initiated_from=reading.initiated_from,
    )


def islands(topology: Topology) -> list[Island]:
    """The parts that no cable joins, the largest first."""
    seen: set[str] = set()
    found: list[Island] = []
    for start in topology.nodes.values():
        if start.id in seen:
            continue
        seen.add(start.id)
        reached = [start]
        for node in reached:
            for link in node.links:
                other = link.other(node)
                if other.id not in seen:
                    seen.add(other.id)
                    reached.append(other)
        found.append(Island(nodes=reached))
    return sorted(found, key=lambda island: -len(island.nodes))


class _Builder:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.links: dict[tuple[str, int, str, int], Link] = {}
        self.at_port: dict[tuple[str, int], list[Link]] = {}
        self.records: dict[str, Record] = {}
        self.repeated = 0
        self.twice: set[int] = set()

    def take(self, record: Record) -> None:
        known = self.records.get(record.id)
        if known is None:
            self.records[record.id] = record
        else:
            self._told_twice(known, record)
        node = self.nodes.get(record.id)
        if node is None or not node.described:
            node = self._describe(node, record)
        for line in record.lines:
            self._cable(node, line)

    def _told_twice(self, known: Record, record: Record) -> None:
        """The same text again is a repeat; anything else is two devices with one GUID."""
        if (known.name, known.device_id, known.system_guid) == (
            record.name,
            record.device_id,
            record.system_guid,
        ) and (known.lines == record.lines or not known.lines or not record.lines):
            self.repeated += 1
        elif record.guid is not None:
            self.twice.add(record.guid)

    def _describe(self, node: Node | None, record: Record) -> Node:
        if node is None:
            node = self.nodes[record.id] = _bare(record.id, record.guid, record.name)
        node.described = True
        node.name = record.name or node.name
        node.ports = record.ports
        node.vendor_id = record.vendor_id
        node.device_id = record.device_id
        node.system_guid = record.system_guid
        node.lid = record.lid
        if node.kind == "adapter" and _is_sharp(node):
            node.kind = "sharp"
        return node

    def _cable(self, node: Node, line: PortLine) -> None:
        other = self.nodes.get(line.peer)
        if other is None:
            guid = int(line.peer[2:], 16) if " " not in line.peer and "<" not in line.peer else None
            other = self.nodes[line.peer] = _bare(line.peer, guid, line.peer_name)
            other.described = False
            other.lid = line.peer_lid if other.kind == "switch" else None
        if line.port_guid is not None:
            node.port_guids[line.port] = line.port_guid
        if line.peer_port_guid is not None:
            other.port_guids[line.peer_port] = line.peer_port_guid
        if node.lid is None:
            node.lid = line.lid
        first = (node.id, line.port) <= (other.id, line.peer_port)
        a, a_port, b, b_port = (
            (node, line.port, other, line.peer_port) if first else (other, line.peer_port, node, line.port)
        )
        key = (a.id, a_port, b.id, b_port)
        link = self.links.get(key)
        if link is None:
            link = self.links[key] = Link(a=a, a_port=a_port, b=b, b_port=b_port)
            a.links.append(link)
            self.at_port.setdefault((a.id, a_port), []).append(link)
            if b is not a:
                b.links.append(link)
            if (b.id, b_port) != (a.id, a_port):
                self.at_port.setdefault((b.id, b_port), []).append(link)
        if first:
            link.told_by_a = True
            link.rate_a = link.rate_a or line.rate
        if not first or key[:2] == key[2:]:
            link.told_by_b = True
            link.rate_b = link.rate_b or line.rate

    def contradictions(self) -> list[Contradiction]:
        found = [
            Contradiction(
                link=link, why=f"one end says {format_rate(link.rate_a)}, the other {format_rate(link.rate_b)}"
            )
            for link in self.links.values()
            if link.rate_a is not None and link.rate_b is not None and link.rate_a != link.rate_b
        ]
        told: set[int] = set()
        for (node_id, port), links in self.at_port.items():
            if len(links) < 2:
                continue
            for link in links:
                if id(link) not in told:
                    told.add(id(link))
                    why = f"port {port} of {self.nodes[node_id].label} has {len(links)} cables in this text"
                    found.append(Contradiction(link=link, why=why))
        return found

    def duplicate_guids(self) -> list[int]:
        """GUIDs of two records that differ, of a switch and an adapter at once, or of ports of two nodes."""
        twice = set(self.twice)
        kinds: dict[int, str] = {}
        ports: dict[int, str] = {}
        for node in self.nodes.values():
            if node.guid is not None and kinds.setdefault(node.guid, node.kind) != node.kind:
                twice.add(node.guid)
            for guid in node.port_guids.values():
                if ports.setdefault(guid, node.id) != node.id:
                    twice.add(guid)
        return sorted(twice)


def _bare(node_id: str, guid: int | None, name: str | None) -> Node:
    node = Node(
        id=node_id, kind=_RECORD_KINDS.get(node_id[:1], "adapter"), guid=guid, name=name, port_guids={}, links=[]
    )
    if node.kind == "adapter" and _is_sharp(node):
        node.kind = "sharp"
    return node


def _is_sharp(node: Node) -> bool:
    return node.device_id == SHARP_DEVICE_ID or _SHARP_NAME in (node.name or "")


def trunks(links: Iterable[Link]) -> dict[tuple[str, str], list[Link]]:
    """Cables between the same two switches, by the two ids."""
    found: dict[tuple[str, str], list[Link]] = defaultdict(list)
    for link in links:
        if link.a.kind == link.b.kind == "switch" and link.a is not link.b:
            found[link.a.id, link.b.id].append(link)
    return found
