"""A fabric's map and its life in the shapes that API and pages use. Pure: it reads, and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmgw.fabric.expected_rate import SlowCable
from llmgw.fabric.layout import GROUP_HEIGHT, GROUP_WIDTH, SWITCH_HEIGHT, SWITCH_WIDTH, lay_out
from llmgw.fabric.names import short_name
from llmgw.fabric.rates import format_rate, rate_gbps
from llmgw.fabric.records import guid_text, parse_guid
from llmgw.fabric.report import Analysis, map_text, report_fabric
from llmgw.fabric.tiers import leaf_of
from llmgw.fabric.topology import Link, Node
from llmgw.fleet.model import Fleet, Replica
from llmgw.fleet.model import Node as FleetNode
from llmgw.hardware.fabrics import why_port_unusable
from llmgw.messages.agent import Port
from llmgw.messages.topology import (
    LiveManager,
    LiveNode,
    LivePort,
    LiveReplica,
    TopologyAdapter,
    TopologyCable,
    TopologyGraph,
    TopologyGroup,
    TopologyLive,
    TopologyRail,
    TopologySizes,
    TopologySlow,
    TopologySwitch,
    TopologyTier,
)
from llmgw.server.fabrics.known import FabricMap, KnownFabric
from llmgw.server.fabrics.port_rates import Rate

PORTS_SHOWN_MAX = 5
"""In sentences; each of them glows on the drawing."""


@dataclass(frozen=True, slots=True)
class OnMap:
    """Which adapter or switch of a map is meant: by its owner, a GUID, or a LID. Made once for each map."""

    by_owner: Mapping[tuple[str, str], tuple[str, ...]]
    by_guid: Mapping[int, str]
    by_lid: Mapping[int, str]
    ports: frozenset[tuple[str, int]]
    """(id, port) of every cable's end."""
    names: Mapping[str, str]
    """What people call an adapter or a switch, by its id."""

    @classmethod
    def of(cls, analysis: Analysis) -> OnMap:
        """The index of one map."""
        by_owner: dict[tuple[str, str], tuple[str, ...]] = {}
        by_guid: dict[int, str] = {}
        by_lid: dict[int, str] = {}
        names: dict[str, str] = {}
        for node in analysis.topology.nodes.values():
            if node.kind == "sharp":
                continue
            for guid in (node.guid, *node.port_guids.values()):
                if guid is not None:
                    by_guid.setdefault(guid, node.id)
            if node.lid:
                by_lid.setdefault(node.lid, node.id)
            owner = analysis.owners.get(node.id)
            names[node.id] = f"{owner.node} {owner.adapter}" if owner is not None else short_name(node.label)
            if owner is not None and owner.known_by == "guid":
                key = (owner.node, owner.adapter)
                by_owner[key] = (*by_owner.get(key, ()), node.id)
        ends = ((end.id, link.port_of(end)) for link in analysis.topology.links for end in (link.a, link.b))
        return cls(by_owner, by_guid, by_lid, frozenset(ends), names)

    def find(self, node_id: str, port: Port) -> str | None:
        """The map's id of the adapter that a node reports, or None when it is not on this map."""
        owned = self.by_owner.get((node_id, port.adapter), ())
        if len(owned) == 1:
            return owned[0]
        for text in (port.port_guid, port.node_guid):
            guid = parse_guid((text or "").replace(":", ""))
            if guid is not None and (found := self.by_guid.get(guid)) is not None:
                return found
        return None


def build_graph(taken: FabricMap, version: str) -> TopologyGraph:
    """The cabling with the places of everything; 10,000 adapters take a good second, so off the event loop."""
    analysis = taken.analysis
    topology = analysis.topology
    layout = lay_out(analysis)
    slow = {id(cable.link): cable for cable in analysis.slow}
    counts = {level: sum(one.level == level for one in layout.switches) for level in layout.levels}
    drawn = {one.node.id for one in layout.switches} | {one.id for each in layout.groups for one in each.adapters}
    return TopologyGraph(
        version=version,
        at=taken.at,
        asked=taken.asked,
        sizes=TopologySizes(
            width=round(layout.width),
            height=round(layout.height),
            switch_width=SWITCH_WIDTH,
            switch_height=SWITCH_HEIGHT,
            group_width=GROUP_WIDTH,
            group_height=GROUP_HEIGHT,
        ),
        tiers=[
            TopologyTier(tier=level, switches=counts[level], y=round(y)) for level, y in layout.levels.items()
        ],
        switches=[
            TopologySwitch(
                id=one.node.id,
                guid=one.node.guid_text,
                label=short_name(one.label),
                name=one.node.name,
                tier=analysis.tiers.get(one.node.id),
                ports=one.node.ports,
                lid=one.node.lid,
                x=round(one.x, 1),
                y=round(one.y, 1),
            )
            for one in layout.switches
        ],
        adapters=[
            _adapter(one, analysis, round(x, 1), round(group.y, 1))
            for group in layout.groups
            for one, x in zip(group.adapters, group.dots, strict=True)
        ],
        groups=[
            TopologyGroup(
                switch=group.switch,
                owner=group.owner,
                label=group.label,
                x=round(group.x, 1),
                y=round(group.y, 1),
                adapters=[one.id for one in group.adapters],
            )
            for group in layout.groups
        ],
        cables=[
            _cable(link, slow.get(id(link)))
            for link in topology.links
            if link.a.id in drawn and link.b.id in drawn
        ],
        rails=[
            TopologyRail(rail=rail.rail, labels=rail.labels, adapters=rail.adapters, aligned=rail.aligned)
            for rail in analysis.rails.rails
        ],
        sharp=len(topology.of_kind("sharp")),
        problems=report_fabric(analysis).problems,
    )


def build_live(
    known: KnownFabric,
    on_map: OnMap | None,
    fleet: Fleet,
    rates: Callable[[str, str, int], Rate],
    *,
    version: str | None,
    now: float,
    wall: float,
) -> TopologyLive:
    """What is alive on a fabric. `rates` is asked by node, adapter and port; `now` is the fleet's clock."""
    ports: list[LivePort] = []
    nodes: list[LiveNode] = []
    for node in sorted(fleet.nodes.values(), key=lambda node: node.node_id):
        mine = [
            _port(node, port, found, rates)
            for port in node.inventory.ports
            if (found := on_map.find(node.node_id, port) if on_map else None) is not None
            or _belongs(node, port, known.names)
        ]
        if mine or node.node_id in known.nodes:
            ports += mine
            nodes.append(_node(node, known.names, now))
    here = {node.node for node in nodes}
    managers = live_managers(known, on_map)
    return TopologyLive(
        id=known.id,
        names=list(known.names),
        at=wall,
        version=version,
        map_at=known.map.at if known.map is not None else None,
        map_text=map_text(known.map.analysis) if known.map is not None else None,
        map_error=known.map_error,
        ports=ports,
        nodes=nodes,
        replicas=[
            _replica(replica, known.names)
            for _, replica in sorted(fleet.replicas.items())
            if not here.isdisjoint(_places(replica))
        ],
        managers=managers,
        managers_text=managers_text(managers, silent=known.silent_since is not None),
        managers_at=known.managers_at,
        silent_since=known.silent_since,
        problems=[*_ports_down(ports), *known.problems],
        errors=[*_ports_down(ports), *known.errors],
    )


def live_managers(known: KnownFabric, on_map: OnMap | None = None) -> list[LiveManager]:
    """The master, then the standbys; each with what it runs on where the map has that."""
    told = known.managers
    if told is None:
        return []
    listed = [("master", told.master)] if told.master is not None else []
    found = []
    for role, manager in [*listed, *(("standby", one) for one in told.standbys)]:
        guid = parse_guid(manager.guid or "")
        place = None
        if on_map is not None:
            place = on_map.by_guid.get(guid) if guid is not None else on_map.by_lid.get(manager.lid or 0)
        name = on_map.names.get(place) if on_map is not None and place is not None else None
        found.append(
            LiveManager(
                role=role, guid=guid_text(guid), lid=manager.lid, priority=manager.priority, id=place, name=name
            )
        )
    return found


def managers_text(managers: Sequence[LiveManager], *, silent: bool) -> str | None:
    """`managed by sm1 mlx5_0 (priority 14); standby: sm2 mlx5_0`; when nobody answers, who was last seen."""
    if not managers:
        return None
    called = {role: [_called(one) for one in managers if one.role == role] for role in ("master", "standby")}
    begun = "managers last seen: master" if silent else "managed by"
    return f"{begun} {', '.join(called['master']) or 'nobody'}; standby: {', '.join(called['standby']) or 'none'}"


def _called(manager: LiveManager) -> str:
    priority = "" if manager.priority is None else f" (priority {manager.priority})"
    return f"{manager.name or manager.guid or f'LID {manager.lid}'}{priority}"


def _adapter(node: Node, analysis: Analysis, x: float, y: float) -> TopologyAdapter:
    owner = analysis.owners.get(node.id)
    leaf = leaf_of(node, analysis.tiers)
    return TopologyAdapter(
        id=node.id,
        guid=node.guid_text,
        label=node.label,
        kind=node.kind,
        owner=owner.node if owner is not None else None,
        adapter=owner.adapter if owner is not None else None,
        known_by=owner.known_by if owner is not None else None,
        leaf=leaf.id if leaf is not None else None,
        rail=analysis.rails.of.get(node.id),
        lid=node.lid,
        x=x,
        y=y,
    )


def _cable(link: Link, slow: SlowCable | None) -> TopologyCable:
    return TopologyCable(
        a=link.a.id,
        a_port=link.a_port,
        b=link.b.id,
        b_port=link.b_port,
        rate=link.rate_text,
        gbps=None if link.rate is None else rate_gbps(*link.rate),
        slow=None
        if slow is None
        else TopologySlow(
            expected=format_rate(slow.expected),
            expected_gbps=rate_gbps(*slow.expected),
            fault=slow.fault,
            judged_by=slow.judged_by,
            why=slow.why,
        ),
    )


def _ports_down(ports: Sequence[LivePort]) -> list[str]:
    down = [port for port in ports if port.down]
    found = [f"{port.node}: {port.why}" for port in down[:PORTS_SHOWN_MAX]]
    if len(down) > len(found):
        found.append(f"{len(down) - len(found)} more ports are down")
    return found


def _belongs(node: FleetNode, port: Port, names: Sequence[str]) -> bool:
    """Whether a port that the map lacks (its cable is out, or nobody has mapped it) is one of this fabric."""
    offers = [offer for offer in node.inventory.fabrics if offer.name in names]
    if any(f"{port.adapter}:{port.port}" in offer.adapters for offer in offers):
        return True
    # A fabric that is not offered tells why, and names the adapter at fault.
    word = re.compile(rf"(?<![\w-]){re.escape(port.adapter)}(?![\w-])")
    return any(not offer.usable and offer.reason and word.search(offer.reason) for offer in offers)


def _port(node: FleetNode, port: Port, found: str | None, rates: Callable[[str, str, int], Rate]) -> LivePort:
    problem = why_port_unusable(port)
    rate = rates(node.node_id, port.adapter, port.port)
    return LivePort(
        node=node.node_id,
        adapter=port.adapter,
        port=port.port,
        id=found,
        state=port.state,
        phys_state=port.phys_state,
        rate_text=port.rate_text,
        rate_gbps=port.rate_gbps,
        lid=port.lid,
        sm_lid=port.sm_lid,
        down=problem is not None,
        why=None if problem is None else f"{problem.what}; {problem.remedy}",
        tx_gbps=rate.tx_gbps,
        rx_gbps=rate.rx_gbps,
        counters={name: count for name, count in sorted(port.counters.items()) if count},
    )


def _node(node: FleetNode, names: Sequence[str], now: float) -> LiveNode:
    offers = [offer for offer in node.inventory.fabrics if offer.name in names]
    heard_s = now - node.last_heard
    return LiveNode(
        node=node.node_id,
        state=node.state.value,
        heard_s=round(max(0.0, heard_s), 1) if heard_s < 1e9 else None,
        unusable=next((offer.reason or "not usable" for offer in offers if not offer.usable), None),
    )


def _places(replica: Replica) -> Iterable[str]:
    """Nodes that a shard of it is on."""
    return {shard.node_id for shard in replica.shards.values() if not shard.over}


def _replica(replica: Replica, names: Sequence[str]) -> LiveReplica:
    return LiveReplica(
        replica_id=replica.replica_id,
        model=replica.model,
        profile=replica.profile,
        state=replica.state.value,
        nodes=replica.node_ids,
        spans=replica.fabric is not None and replica.fabric in names and replica.nodes > 1,
    )
