"""Where a drawing puts things: switches in tiers, adapters grouped by node under their leaves, bundled cables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from llmgw.fabric.expected_rate import SlowCable
from llmgw.fabric.names import is_unnamed
from llmgw.fabric.order import LEVELS, natural_key, order_level, switch_labels
from llmgw.fabric.report import Analysis
from llmgw.fabric.topology import Link, Node, Topology

COLUMN = 150.0
COLUMN_WITH_MARKERS = 250.0
"""The width of a leaf and its rows, also where rows say how slow they are."""
SWITCH_WIDTH = 132.0
SWITCH_HEIGHT = 26.0
ROW = 13.0
MARGIN = 40.0
TOP = 96.0
TIER_GAP = 210.0
LOOSE_MAX = 50


class Slot(msgspec.Struct):
    """One node's adapters under one switch: a row of text. `slow` are those of its cables that are below rate."""

    label: str
    adapters: list[Node]
    links: list[Link]
    slow: list[SlowCable]


class PlacedSwitch(msgspec.Struct):
    """A switch with the middle of its upper edge, and the rows under it."""

    node: Node
    label: str
    level: str
    x: float
    y: float
    slots: list[Slot]


class Bundle(msgspec.Struct):
    """The cables between two switches. The slow ones are drawn each by itself."""

    a: PlacedSwitch
    b: PlacedSwitch
    links: list[Link]
    slow: list[SlowCable]


class Layout(msgspec.Struct):
    """Sizes in pixels of the drawing's own scale."""

    width: float
    height: float
    switches: list[PlacedSwitch]
    bundles: list[Bundle]
    levels: dict[str, float]
    """The upper edge of each tier that has a switch."""
    loose: list[Node]
    """Adapters that no cable joins to a switch, LOOSE_MAX of them."""


def lay_out(analysis: Analysis) -> Layout:
    """Places for everything. Leaves are ordered by the spines they share, spines by the leaves below them."""
    topology = analysis.topology
    slow = {id(cable.link): cable for cable in analysis.slow}
    tiers: Mapping[str, str] = analysis.tiers
    by_level: dict[str, list[Node]] = defaultdict(list)
    for switch in topology.of_kind("switch"):
        by_level[tiers.get(switch.id, "untiered")].append(switch)
    present = [level for level in LEVELS if by_level[level]]
    widest = max((len(by_level[level]) for level in present), default=1)
    slow_rows = any("adapter" in (cable.link.a.kind, cable.link.b.kind) for cable in analysis.slow)
    width = 2 * MARGIN + max(4, widest) * (COLUMN_WITH_MARKERS if slow_rows else COLUMN)
    labels = switch_labels(topology)
    places: dict[str, PlacedSwitch] = {}
    levels: dict[str, float] = {}
    for level in reversed(present):
        ordered = order_level(level, by_level[level], {one: place.x for one, place in places.items()})
        pitch = (width - 2 * MARGIN) / len(ordered)
        for at, switch in enumerate(ordered):
            slots = _slots(switch, analysis, slow)
            places[switch.id] = PlacedSwitch(
                switch, labels[switch.id], level, MARGIN + (at + 0.5) * pitch, 0.0, slots
            )
    y = TOP
    for level in present:
        levels[level] = y
        rows = 0
        for place in places.values():
            if place.level == level:
                place.y = y
                rows = max(rows, len(place.slots))
        y += SWITCH_HEIGHT + rows * ROW + (TIER_GAP if level != present[-1] else MARGIN)
    loose = _loose(topology)
    height = y + MARGIN + len(loose) * ROW
    return Layout(width, height, list(places.values()), _bundles(topology, places, slow), levels, loose)


def count_rates(links: Iterable[Link]) -> str:
    """`31 × 4xNDR, 1 × 4xHDR`."""
    seen = Counter(link.rate_text for link in links)
    return ", ".join(f"{count} × {rate}" for rate, count in seen.most_common())


def _loose(topology: Topology) -> list[Node]:
    adapters = topology.of_kind("adapter")
    alone = [node for node in adapters if not any(link.other(node).kind == "switch" for link in node.links)]
    return alone[:LOOSE_MAX]


def _slots(switch: Node, analysis: Analysis, slow: Mapping[int, SlowCable]) -> list[Slot]:
    """One row a node where it is known whose the adapters are, else one row an adapter. Routers are rows too."""
    rows: dict[str, Slot] = {}
    for link in switch.links:
        other = link.other(switch)
        if other.kind not in ("adapter", "router"):
            continue
        owner = analysis.owners.get(other.id)
        key = other.id if owner is None else f"node {owner.node}"
        row = rows.setdefault(key, Slot("", [], [], []))
        row.adapters.append(other)
        row.links.append(link)
        if id(link) in slow:
            row.slow.append(slow[id(link)])
    for row in rows.values():
        row.label = _row_label(row.adapters, analysis)
    return sorted(rows.values(), key=lambda row: natural_key(row.label))


def _row_label(adapters: Sequence[Node], analysis: Analysis) -> str:
    owner = analysis.owners.get(adapters[0].id)
    if owner is None:
        return adapters[0].guid_text if is_unnamed(adapters[0]) else adapters[0].label
    names = sorted({analysis.owners[one.id].adapter for one in adapters}, key=natural_key)
    return f"{owner.node} {', '.join(names)}"


def _bundles(
    topology: Topology, places: Mapping[str, PlacedSwitch], slow: Mapping[int, SlowCable]
) -> list[Bundle]:
    found: dict[tuple[str, str], Bundle] = {}
    for link in _between_switches(topology.links):
        bundle = found.get((link.a.id, link.b.id))
        if bundle is None:
            bundle = found[link.a.id, link.b.id] = Bundle(places[link.a.id], places[link.b.id], [], [])
        bundle.links.append(link)
        if id(link) in slow:
            bundle.slow.append(slow[id(link)])
    return list(found.values())


def _between_switches(links: Iterable[Link]) -> Iterable[Link]:
    return (link for link in links if link.a.kind == link.b.kind == "switch" and link.a is not link.b)
