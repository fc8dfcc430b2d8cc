"""What `llmgw inspect fabric` says of a saved map: this room's findings in one shape, stable for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from llmgw.fabric.changes import Change
from llmgw.fabric.expected_rate import SlowCable, find_slow_cables
from llmgw.fabric.ibnetdiscover import read_ibnetdiscover
from llmgw.fabric.names import Owner, find_owners, is_unnamed, manager_hosts
from llmgw.fabric.rails import Rails, find_rails
from llmgw.fabric.rates import format_rate
from llmgw.fabric.records import Form, guid_text
from llmgw.fabric.tiers import TIERS, Tier, find_tiers
from llmgw.fabric.topology import Link, Node, Topology, build_topology, islands
from llmgw.messages.agent import Port

DUPLICATES_SHOWN_MAX = 50


class End(msgspec.Struct):
    """One end of a cable. `guid` is its node's (in `-p` output its port's)."""

    guid: str
    port: int
    name: str | None


class SlowRow(msgspec.Struct):
    """A cable below its rate. `fault`: speed, width, or both; `judged_by`: kinds, trunk or likes."""

    a: End
    b: End
    rate: str
    expected: str
    why: str
    fault: str
    judged_by: str


class DisagreeingRow(msgspec.Struct):
    """A cable of which the text says two things."""

    a: End
    b: End
    rate_a: str | None
    rate_b: str | None
    why: str


class RailRow(msgspec.Struct):
    """The Nth adapter of every node, and the leaves that are this rail's own."""

    rail: int
    labels: list[str]
    leaves: list[str]
    adapters: int
    aligned: bool


class SwapRow(msgspec.Struct):
    """Two adapters of a node, each on the other's leaf."""

    node: str
    adapters: tuple[str, str]
    leaves: tuple[str, str]


class OffRailRow(msgspec.Struct):
    """An adapter on a leaf of another rail."""

    node: str
    adapter: str
    rail: int
    leaf: str
    leaf_rail: int


class IslandRow(msgspec.Struct):
    """A part that no cable joins to the others."""

    switches: int
    hcas: int


class FabricReport(msgspec.Struct):
    """`hcas` are adapters without SHARP nodes and routers; a link is one cable, counted once."""

    switches: int
    hcas: int
    sharp: int
    routers: int
    links: int
    rates: dict[str, int]
    tiers: dict[str, int]
    slow: list[SlowRow]
    unnamed_hcas: int
    self_links: int
    disagreeing: list[DisagreeingRow]
    rails: list[RailRow]
    unread_lines: int
    form: Form
    rail_swaps: list[SwapRow]
    off_rail: list[OffRailRow]
    switches_without_tier: int
    one_sided: int
    unconnected_ports: int
    islands: list[IslandRow]
    duplicate_guids: list[str]
    hosts: int
    unread: list[str]
    warnings: list[str]
    problems: list[str]
    changes: list[Change] | None = None
    """Since an earlier map, where one was given."""


class Analysis(msgspec.Struct):
    """Everything that follows from one map; `inspect`, the pages and placement read it."""

    topology: Topology
    tiers: dict[str, Tier]
    owners: dict[str, Owner]
    slow: list[SlowCable]
    rails: Rails


def analyse(
    text: str,
    managers: Iterable[int] = (),
    inventories: Mapping[str, Iterable[Port]] | None = None,
    orders: Mapping[str, Sequence[str]] | None = None,
) -> Analysis:
    """Read a saved map and judge it. `managers`: port GUIDs of subnet managers, whose hosts are no compute.

    `inventories` are the ports of the nodes that have agents, by which adapters are theirs; `orders` the adapters
    of each on this fabric, in the order of the rails. Both by node id.
    """
    return judge(build_topology(read_ibnetdiscover(text)), managers, inventories, orders)


def judge(
    topology: Topology,
    managers: Iterable[int] = (),
    inventories: Mapping[str, Iterable[Port]] | None = None,
    orders: Mapping[str, Sequence[str]] | None = None,
) -> Analysis:
    """What follows from a map that was read, also when nodes have come since. Arguments as of `analyse`."""
    hosts = manager_hosts(topology, managers)
    tiers = find_tiers(topology, hosts)
    owners = find_owners(topology, inventories)
    compute = {node: owner for node, owner in owners.items() if node not in hosts}
    return Analysis(
        topology=topology,
        tiers=tiers,
        owners=owners,
        slow=find_slow_cables(topology),
        rails=find_rails(topology, tiers, compute, orders),
    )


def report_fabric(analysis: Analysis) -> FabricReport:
    """The shape of `inspect fabric -o json`."""
    topology, tiers = analysis.topology, analysis.tiers
    switches, adapters = topology.of_kind("switch"), topology.of_kind("adapter")
    rates = Counter(link.rate_text for link in topology.links)
    tier_counts = Counter(tiers.values())
    names = {node.id: node.label for node in topology.nodes.values()}
    parts = islands(topology)
    return FabricReport(
        switches=len(switches),
        hcas=len(adapters),
        sharp=len(topology.of_kind("sharp")),
        routers=len(topology.of_kind("router")),
        links=len(topology.links),
        rates=dict(rates.most_common()),
        tiers={tier: tier_counts[tier] for tier in TIERS},
        slow=[
            SlowRow(
                a=end_of(cable.link, cable.link.a),
                b=_far_end(cable.link),
                rate=format_rate(cable.rate),
                expected=format_rate(cable.expected),
                why=cable.why,
                fault=cable.fault,
                judged_by=cable.judged_by,
            )
            for cable in analysis.slow
        ],
        unnamed_hcas=sum(is_unnamed(node) for node in adapters),
        self_links=len(topology.self_links),
        disagreeing=[
            DisagreeingRow(
                a=end_of(said.link, said.link.a),
                b=_far_end(said.link),
                rate_a=_rate_text(said.link.rate_a),
                rate_b=_rate_text(said.link.rate_b),
                why=said.why,
            )
            for said in topology.contradictions
        ],
        rails=[
            RailRow(rail.rail, rail.labels, [names[leaf] for leaf in rail.leaves], rail.adapters, rail.aligned)
            for rail in analysis.rails.rails
        ],
        unread_lines=topology.unread,
        form=topology.form,
        rail_swaps=[
            SwapRow(pair.node, pair.adapters, (names[pair.leaves[0]], names[pair.leaves[1]]))
            for pair in analysis.rails.swapped
        ],
        off_rail=[
            OffRailRow(off.node, off.adapter, off.rail, names[off.leaf], off.leaf_rail)
            for off in analysis.rails.off_rail
        ],
        switches_without_tier=len(switches) - len(tiers),
        one_sided=len(topology.one_sided),
        unconnected_ports=topology.unconnected_ports,
        islands=[IslandRow(part.count("switch"), part.count("adapter")) for part in parts],
        duplicate_guids=[guid_text(guid) or "" for guid in topology.duplicate_guids[:DUPLICATES_SHOWN_MAX]],
        hosts=len({owner.node for owner in analysis.owners.values()}),
        unread=topology.unread_shown,
        warnings=topology.warnings,
        problems=_problems(topology, len(parts), len(analysis.slow)),
    )


def end_of(link: Link, node: Node) -> End:
    """The end of a cable that is in `node`."""
    return End(guid=node.guid_text, port=link.port_of(node), name=node.name)


def map_text(analysis: Analysis) -> str:
    """`40 switches, 542 adapters, 1114 cables, 1 below its rate`."""
    topology = analysis.topology
    parts = [
        counted(len(topology.of_kind("switch")), "switch", "switches"),
        counted(len(topology.of_kind("adapter")), "adapter", "adapters"),
        counted(len(topology.links), "cable", "cables"),
    ]
    if analysis.slow:
        parts.append(f"{len(analysis.slow)} below {'its' if len(analysis.slow) == 1 else 'their'} rate")
    return ", ".join(parts)


def _far_end(link: Link) -> End:
    return End(guid=link.b.guid_text, port=link.b_port, name=link.b.name)


def _rate_text(rate: tuple[int, str] | None) -> str | None:
    return None if rate is None else format_rate(rate)


def _problems(topology: Topology, parts: int, slow: int) -> list[str]:
    """What a person should know before trusting the figures."""
    found = []
    nodes, links = len(topology.nodes), len(topology.links)
    if not nodes:
        found.append("there is no map in this text; save the output of ibnetdiscover, run as root on a node")
    elif topology.form == "list":
        found.append(
            "this is a list of nodes (ibnetdiscover -l), which has no cables; save plain ibnetdiscover instead"
        )
    elif nodes == 1 and not links and topology.of_kind("adapter"):
        found.append(
            "this node sees only itself: the port it was asked through is down, or the map was cut short; look "
            "at ibstat, and ask through another port (ibnetdiscover -C mlx5_0 -P 1)"
        )
    elif not links:
        found.append("there is no cable in this text, only nodes: the map was cut short")
    elif parts > 1:
        found.append(f"the map falls into {parts} parts that no cable joins")
    unreadable = sum(node.guid is None for node in topology.nodes.values())
    if unreadable:
        found.append(
            f"the GUIDs of {unreadable} nodes cannot be read (redacted?): they are told apart by their names only"
        )
    if topology.duplicate_guids:
        shown = ", ".join(guid_text(guid) or "" for guid in topology.duplicate_guids[:3])
        found.append(f"{len(topology.duplicate_guids)} GUIDs belong to two devices each: {shown}")
    if topology.repeated_records:
        found.append(f"{topology.repeated_records} records stand twice in the text, and were counted once")
    if topology.contradictions:
        differ = "cable is told differently by its two ends"
        found.append(
            counted(len(topology.contradictions), differ, "cables are told differently by their two ends")
        )
    unknown = sum(link.rate is None or link.rate[1] == "???" for link in topology.links)
    if unknown:
        found.append(
            f"the rate of {counted(unknown, 'cable', 'cables')} is unknown; infiniband-diags before 49 cannot "
            "name XDR, before 34 NDR"
        )
    found += what_lacks(topology)
    if slow:
        found.append(f"{counted(slow, 'cable runs', 'cables run')} below the rate that both ends could do")
    return found


def what_lacks(topology: Topology) -> list[str]:
    """Why a map is not `whole`, in sentences; none for one that is."""
    found = []
    if one_sided := len(topology.one_sided):
        links = len(topology.links)
        found.append(f"{one_sided} of {links} cables are told by one end only: the map is cut, or was changing")
    if topology.unread:
        lines = counted(topology.unread, "line", "lines")
        found.append(f"{lines} could not be read, or not whole, or repeat another")
    if topology.warnings:
        found.append(f"ibnetdiscover complained ({topology.warnings[0]}): the map may lack what it did not reach")
    return found


def counted(count: int, one: str, several: str) -> str:
    """`1 cable`, `2 cables`."""
    return f"{count} {one if count == 1 else several}"
