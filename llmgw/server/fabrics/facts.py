"""What placement is told of the fabrics: where each node sits, and how far leaves are apart. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from llmgw.fabric.names import short_name
from llmgw.fabric.rates import format_rate
from llmgw.fabric.report import Analysis
from llmgw.fabric.tiers import leaf_of
from llmgw.fabric.topology import Node as MapNode
from llmgw.fleet.fabric_facts import FabricFacts, Place
from llmgw.fleet.model import Fleet, Node
from llmgw.messages.agent import FabricOffer
from llmgw.server.fabrics.book import FabricBook
from llmgw.server.fabrics.known import KnownFabric
from llmgw.server.fabrics.port_watch import PortWatch


class _Map:
    """The cluster's own adapters on one map."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.adapters = {
            (owner.node, owner.adapter): analysis.topology.nodes[node_id]
            for node_id, owner in analysis.owners.items()
            if owner.known_by == "guid"
        }
        strays = [(pair.node, adapter) for pair in analysis.rails.swapped for adapter in pair.adapters]
        strays += [(off.node, off.adapter) for off in analysis.rails.off_rail]
        self.strays = set(strays) & self.adapters.keys()
        rails = analysis.rails.rails
        self.aligned = all(rail.aligned for rail in rails) if rails else None
        self.slow: dict[str, list[str]] = {}
        for cable in analysis.slow:
            for end in (cable.link.a, cable.link.b):
                what = f"runs at {format_rate(cable.rate)}, not {format_rate(cable.expected)}"
                self.slow.setdefault(end.id, []).append(what)

    def leaf_of(self, node_id: str, adapter: str, port: int) -> MapNode | None:
        """The leaf that a port of a node's adapter hangs on."""
        found = self.adapters.get((node_id, adapter))
        return leaf_of(found, self.analysis.tiers, port) if found is not None else None


def fabric_facts(
    fleet: Fleet,
    book: FabricBook,
    watch: PortWatch,
    now: float,
    tests: Mapping[tuple[str, str], str] | None = None,
) -> FabricFacts:
    """All that is known now. `now` is seconds since the epoch.

    `tests`: (node, the operator's name of a fabric) → what bandwidth tests say against it, as a sentence.
    """
    maps = {fabric.id: _Map(fabric.map.analysis) for fabric in book.known.values() if fabric.map is not None}
    places: dict[tuple[str, str], Place] = {}
    used: dict[str, set[str]] = {}
    names: dict[str, str] = {}
    for node in fleet.nodes.values():
        for offer in node.inventory.fabrics:
            if not offer.usable:
                continue
            fabric = _fabric_of(book, node, offer)
            made = maps.get(fabric.id) if fabric is not None else None
            leaves = _leaves(made, node, offer) if made is not None else []
            for leaf in filter(None, leaves):
                used.setdefault(fabric.id if fabric else "", set()).add(leaf.id)
                names[leaf.id] = short_name(leaf.label)
            doubts = _doubts(made, watch, node, offer, now)
            failed = (tests or {}).get((node.node_id, offer.name))
            if failed is not None:
                doubts = [*doubts, failed]
            places[node.node_id, offer.name] = Place(
                physical=fabric.id if fabric is not None else None,
                leaves=tuple(leaf.id if leaf is not None else "" for leaf in leaves),
                aligned=_aligned(made, node, offer, leaves) if made is not None and leaves else None,
                doubts=tuple(dict.fromkeys(doubts)),
            )
    distances: dict[tuple[str, str], int] = {}
    for fabric_id, leaves_used in used.items():
        distances |= leaf_distances(maps[fabric_id].analysis, leaves_used)
    return FabricFacts(places=places, distances=distances, leaf_names=names)


def leaf_distances(analysis: Analysis, leaves: Collection[str]) -> Mapping[tuple[str, str], int]:
    """(leaf, leaf), the lower id first → tiers crossed between them: 1 over a spine, 2 over a core.

    Leaves that are joined to each other, as in a ring, are 1 apart for every two cables on the way.
    """
    neighbours: dict[str, list[str]] = {}
    for switch in analysis.topology.of_kind("switch"):
        others = {link.other(switch).id for link in switch.links if link.other(switch).kind == "switch"}
        neighbours[switch.id] = sorted(others - {switch.id})
    found: dict[tuple[str, str], int] = {}
    for start in sorted(leaves):
        wanted = {leaf for leaf in leaves if leaf > start}
        hops = {start: 0}
        reached = [start]
        for here in reached:
            if not wanted:
                break
            for other in neighbours.get(here, ()):
                if other not in hops:
                    hops[other] = hops[here] + 1
                    reached.append(other)
                    if other in wanted:
                        wanted.discard(other)
                        found[start, other] = (hops[other] + 1) // 2
    return found


def _fabric_of(book: FabricBook, node: Node, offer: FabricOffer) -> KnownFabric | None:
    """The physical fabric of an offer; None when nothing tells, or its ports are on several."""
    names = set(offer.adapters)
    found = {
        book.of_port(offer.name, port)
        for port in node.inventory.ports
        if f"{port.adapter}:{port.port}" in names and port.link_layer == "InfiniBand"
    }
    only = found.pop() if len(found) == 1 else None
    return book.known.get(only) if only is not None else None


def _split(name: str) -> tuple[str, int]:
    adapter, _, port = name.partition(":")
    return adapter, int(port) if port.isdigit() else 1


def _leaves(made: _Map, node: Node, offer: FabricOffer) -> list[MapNode | None]:
    """The leaf of each adapter in order, None where the map tells none; empty when it tells none at all."""
    found = [made.leaf_of(node.node_id, *_split(name)) for name in offer.adapters]
    return found if any(found) else []


def _aligned(made: _Map, node: Node, offer: FabricOffer, leaves: Collection[MapNode | None]) -> bool | None:
    if made.aligned and any((node.node_id, _split(name)[0]) in made.strays for name in offer.adapters):
        return False
    return None if None in leaves and made.aligned else made.aligned


def _doubts(made: _Map | None, watch: PortWatch, node: Node, offer: FabricOffer, now: float) -> Iterable[str]:
    # No figures that move with every heartbeat: each other sentence is another decision of placement.
    for name in offer.adapters:
        adapter, port = _split(name)
        on_map = made.adapters.get((node.node_id, adapter)) if made is not None else None
        if made is not None and on_map is not None:
            for slow in made.slow.get(on_map.id, ()):
                yield f"the cable of {adapter} {slow}"
        errors = watch.errors(node.node_id, adapter, port, now)
        if errors:
            yield f"{name} counted errors in the last hour ({', '.join(errors)})"
    if made is not None:
        for pair in made.analysis.rails.swapped:
            if pair.node == node.node_id and (pair.node, pair.adapters[0]) in made.adapters:
                yield f"{' and '.join(pair.adapters)} are each on the other's leaf"
