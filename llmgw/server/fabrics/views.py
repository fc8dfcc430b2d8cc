"""Fabrics in the admin API's shapes. Reads only."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from llmgw.fabric.managers import Manager
from llmgw.fabric.rates import format_rate
from llmgw.fabric.records import parse_guid
from llmgw.fabric.report import end_of, report_fabric
from llmgw.fabric.topology import Link
from llmgw.fabric.topology import Node as MapNode
from llmgw.fleet.model import Node, NodeState
from llmgw.messages.admin_fabrics import CableEndView, FabricMapView, FabricView, ManagerView, SlowCableView
from llmgw.server.fabrics.known import FabricMap, KnownFabric, KnownName
from llmgw.server.fabrics.problems import name_findings
from llmgw.server.fabrics.usable_ports import link_layers
from llmgw.server.hub import Hub

ETHERNET = "Ethernet"


def fabric_views(
    hub: Hub, changed: Mapping[tuple[str | None, str | None], int], maps: Mapping[str, FabricMapView]
) -> list[FabricView]:
    """Every fabric that a node declares, by name.

    `changed`: (id, name) → changes of the last day; `maps`: id → the newest map (`map_view`).
    """
    layers = link_layers(hub.fleet)
    declared: dict[str, list[Node]] = {}
    for node in sorted(hub.fleet.nodes.values(), key=lambda node: node.node_id):
        for name in dict.fromkeys(offer.name for offer in node.inventory.fabrics):
            declared.setdefault(name, []).append(node)
    views = []
    for name, nodes in sorted(declared.items()):
        known = hub.fabrics.named(name)
        ids = [fabric.id for fabric in known]
        told: list[KnownFabric | None] = [*known] or [None]
        for fabric in told:
            mine = [node for node in nodes if _is_on(hub, node, name, fabric, ids)]
            view = _view(hub, name, mine)
            changes = sum(
                count
                for (its_id, its_name), count in changed.items()
                if (its_id is not None and fabric is not None and its_id == fabric.id)
                or (its_name == name and (its_id is None or fabric is None))
            )
            facts: dict[str, object] = {"link_layer": layers.get(name), "ids": ids, "changes": changes}
            if fabric is not None:
                facts |= {**_of_fabric(hub, fabric), "map": maps.get(fabric.id)}
            elif name in hub.fabrics.names:
                facts |= _of_name(hub.fabrics.names[name])
            views.append(msgspec.structs.replace(view, **facts))
    return views


def map_view(made: FabricMap, now: float) -> FabricMapView:
    """A map in figures."""
    report = report_fabric(made.analysis)
    return FabricMapView(
        at=made.at,
        age_s=round(max(0.0, now - made.at), 1),
        asked=made.asked,
        whole=made.analysis.topology.whole,
        switches=report.switches,
        tiers=report.tiers,
        adapters=report.hcas,
        cables=report.links,
        rates=report.rates,
        slow=[
            SlowCableView(
                a=_end(cable.link, cable.link.a),
                b=_end(cable.link, cable.link.b),
                rate=format_rate(cable.rate),
                expected=format_rate(cable.expected),
                why=cable.why,
            )
            for cable in made.analysis.slow
        ],
    )


def _is_on(hub: Hub, node: Node, name: str, fabric: KnownFabric | None, ids: list[str]) -> bool:
    """Whether a node is told under a physical fabric; one of which that is not known, under the first."""
    if fabric is None or len(ids) < 2:
        return True
    place = hub.fleet.fabric_facts.places.get((node.node_id, name))
    physical = place.physical if place is not None and place.physical in ids else ids[0]
    return physical == fabric.id


def _view(hub: Hub, name: str, nodes: list[Node]) -> FabricView:
    used = hub.fleet.gpus_in_use()
    usable = [node for node in nodes if node.fabric(name) is not None]
    live = [node for node in usable if node.state is not NodeState.LOST]
    live_ids = {node.node_id for node in live}
    rates = [offer.rate_gbps for node in live if (offer := node.fabric(name)) and offer.rate_gbps is not None]
    return FabricView(
        name=name,
        nodes=[node.node_id for node in live],
        unusable={node.node_id: _unusable(node, name) for node in nodes if node.node_id not in live_ids},
        gpus=sum(len(node.gpus) for node in live),
        gpus_free=sum(
            sum(1 for gpu in node.gpus if gpu.usable and gpu.uuid not in used.get(node.node_id, set()))
            for node in live
            if node.offered
        ),
        rate_gbps=min(rates, default=None),
        replicas=sorted(
            replica.replica_id
            for replica in hub.fleet.replicas.values()
            if replica.fabric == name and set(replica.node_ids) <= {node.node_id for node in nodes}
        ),
    )


def _of_fabric(hub: Hub, fabric: KnownFabric) -> dict[str, object]:
    managers = fabric.managers
    master = managers.master if managers is not None else None
    return {
        "id": fabric.id,
        "answer": fabric.answer,
        "answered_at": fabric.managers_at,
        "silent_since": fabric.silent_since,
        "master": _manager(hub, fabric, master) if master is not None else None,
        "standbys": [_manager(hub, fabric, one) for one in (managers.standbys if managers is not None else ())],
        "master_changed_at": fabric.master_changed_at,
        "map_error": fabric.map_error,
        "accepted_at": fabric.accepted_at,
        "accepted_by": fabric.accepted_by,
        "differences": len(fabric.differences),
        "problems": [finding.what for finding in hub.fabrics.findings_of(fabric, hub.clock.wall())],
    }


def _of_name(name: KnownName) -> dict[str, object]:
    return {
        "answer": name.answer,
        "map_error": name.map_error,
        "problems": [finding.what for finding in name_findings(name)],
    }


def _manager(hub: Hub, fabric: KnownFabric, manager: Manager) -> ManagerView:
    return ManagerView(
        guid=manager.guid, lid=manager.lid, priority=manager.priority, host=_host(hub, fabric, manager.guid)
    )


def _host(hub: Hub, fabric: KnownFabric, text: str | None) -> str | None:
    """The node, or what the map calls the device, that a manager's port is of."""
    guid = parse_guid(text or "")
    if guid is None:
        return None
    for node in hub.fleet.nodes.values():
        for port in node.inventory.ports:
            if parse_guid((port.port_guid or "").replace(":", "")) == guid:
                return node.node_id
    for device in fabric.map.analysis.topology.nodes.values() if fabric.map is not None else ():
        if guid in (device.guid, *device.port_guids.values()):
            return device.name
    return None


def _end(link: Link, node: MapNode) -> CableEndView:
    end = end_of(link, node)
    # Of a cable from a node to itself both ends are that node.
    port = link.b_port if node is link.b and link.a is not link.b else end.port
    return CableEndView(guid=end.guid, port=port, name=end.name)


def _unusable(node: Node, name: str) -> str:
    if node.state is NodeState.LOST:
        return "the node is lost"
    offer = next(offer for offer in node.inventory.fabrics if offer.name == name)
    return offer.reason or "not usable"
