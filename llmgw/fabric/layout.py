"""Where a drawing puts things: switches in tiers, and under each a fan of groups of adapters, one group a node.

Sizes are those of the drawing's own world, in which a line of small text is 12 high; whoever looks at it zooms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from llmgw.fabric.names import is_unnamed
from llmgw.fabric.order import LEVELS, natural_key, order_level, switch_labels
from llmgw.fabric.report import Analysis
from llmgw.fabric.topology import Node

SWITCH_WIDTH = 124.0
SWITCH_HEIGHT = 30.0
GROUP_WIDTH = 78.0
GROUP_HEIGHT = 27.0
GROUP_GAP = 13.0
"""Between groups: the cables of the lower rows run through it."""
DOT_PITCH_MAX = 10.0
LEAF_GAP = 38.0
FAN_GAP = 46.0
"""Between a switch and the first row of its fan."""
TIER_GAP = 150.0
TIER_GAP_PART = 0.15
"""Of the drawing's width: cables across a wide fabric need height, or they all lie flat."""
MARGIN = 34.0
ASPECT = 2.1
"""Width by height that fits a screen."""
COLUMNS_MAX = 10
LOOSE_MAX = 500


class PlacedSwitch(msgspec.Struct):
    """A switch with the middle of its upper edge."""

    node: Node
    label: str
    level: str
    x: float
    y: float


class Group(msgspec.Struct):
    """The adapters of one node under one switch (or one adapter of nobody known): upper left corner, and dots."""

    switch: str | None
    """None: no cable joins it to a switch."""
    owner: str | None
    label: str
    x: float
    y: float
    adapters: list[Node]
    dots: list[float]
    """The middle of each adapter's dot, across, on the group's upper edge."""


class Layout(msgspec.Struct):
    """Everything placed. `levels`: the upper edge of each tier that has a switch."""

    width: float
    height: float
    switches: list[PlacedSwitch]
    groups: list[Group]
    levels: dict[str, float]


def lay_out(analysis: Analysis) -> Layout:
    """Places for the whole map. An adapter with cables to two switches stands under the first of them."""
    topology = analysis.topology
    tiers: Mapping[str, str] = analysis.tiers
    by_level: dict[str, list[Node]] = defaultdict(list)
    for switch in topology.of_kind("switch"):
        by_level[tiers.get(switch.id, "untiered")].append(switch)
    present = [level for level in LEVELS if by_level[level]]
    labels = switch_labels(topology)
    across: dict[str, float] = {}
    order: dict[str, list[Node]] = {}
    for level in reversed(present):
        order[level] = order_level(level, by_level[level], across)
        across.update({switch.id: float(at) / len(order[level]) for at, switch in enumerate(order[level])})
    groups = _groups(analysis, [switch for level in reversed(present) for switch in order[level]])
    columns = _columns([len(groups.get(switch.id, ())) for switch in order.get("leaf", [])], len(present))
    placed = Layout(0.0, 0.0, [], [], {})
    widths = {
        level: [_fan_width(len(groups.get(one.id, ())), columns) for one in order[level]] for level in present
    }
    inner = max((sum(each) + LEAF_GAP * (len(each) - 1) for each in widths.values()), default=SWITCH_WIDTH)
    placed.width = inner + 2 * MARGIN
    gap = TIER_GAP + TIER_GAP_PART * inner
    y = MARGIN
    for level in present:
        placed.levels[level] = y
        spare = (inner - sum(widths[level])) / len(order[level])
        x, deepest = MARGIN, 0.0
        for switch, width in zip(order[level], widths[level], strict=True):
            middle = x + (spare + width) / 2
            placed.switches.append(PlacedSwitch(switch, labels[switch.id], level, middle, y))
            deepest = max(deepest, _place_fan(placed, groups.get(switch.id, []), middle, y, columns))
            x += spare + width
        y += SWITCH_HEIGHT + deepest + (gap if level != present[-1] else 0.0)
    placed.height = _place_loose(placed, groups.get(None, []), y + FAN_GAP) + MARGIN
    return placed


def _groups(analysis: Analysis, switches: list[Node]) -> dict[str | None, list[Group]]:
    """Switch → its groups, ordered by name; None → what no cable joins to a switch."""
    found: dict[str | None, dict[str, Group]] = defaultdict(dict)
    seen: set[str] = set()

    def take(switch: str | None, adapter: Node) -> None:
        if adapter.id in seen:
            return
        seen.add(adapter.id)
        owner = analysis.owners.get(adapter.id)
        key = adapter.id if owner is None else f"node {owner.node}"
        group = found[switch].get(key)
        if group is None:
            label = owner.node if owner is not None else _label(adapter)
            group = found[switch][key] = Group(
                switch, None if owner is None else owner.node, label, 0.0, 0.0, [], []
            )
        group.adapters.append(adapter)

    for switch in switches:
        for link in switch.links:
            if (other := link.other(switch)).kind in ("adapter", "router"):
                take(switch.id, other)
    for adapter in [*analysis.topology.of_kind("adapter"), *analysis.topology.of_kind("router")]:
        if len(found[None]) >= LOOSE_MAX:
            break
        take(None, adapter)

    def name(adapter: Node) -> list[tuple[int, str]]:
        owner = analysis.owners.get(adapter.id)
        return natural_key(owner.adapter if owner is not None else adapter.label)

    for groups in found.values():
        for group in groups.values():
            group.adapters.sort(key=name)
    return {
        switch: sorted(groups.values(), key=lambda group: natural_key(group.label))
        for switch, groups in found.items()
    }


def _label(adapter: Node) -> str:
    return adapter.guid_text if is_unnamed(adapter) else adapter.label


def _columns(counts: list[int], tiers: int) -> int:
    """How many groups stand side by side, so that the whole comes nearest to a screen's shape."""

    def badness(columns: int) -> float:
        width = sum(_fan_width(count, columns) + LEAF_GAP for count in counts)
        rows = max((-(-count // columns) for count in counts), default=0)
        height = tiers * SWITCH_HEIGHT + rows * (GROUP_HEIGHT + GROUP_GAP) + FAN_GAP
        height += (tiers - 1) * (TIER_GAP + TIER_GAP_PART * width)
        aspect = width / height
        return max(aspect / ASPECT, ASPECT / aspect)

    return min(range(1, COLUMNS_MAX + 1), key=badness) if counts else 4


def _fan_width(count: int, columns: int) -> float:
    side_by_side = min(count, columns)
    return max(SWITCH_WIDTH, side_by_side * (GROUP_WIDTH + GROUP_GAP) - GROUP_GAP)


def _place_fan(placed: Layout, groups: list[Group], middle: float, y: float, columns: int) -> float:
    """Places the groups in rows under a switch; how deep they reach below it."""
    for row_at in range(0, len(groups), columns):
        row = groups[row_at : row_at + columns]
        # The last row stands under the first ones' left, so that columns are columns.
        wide = min(len(groups), columns)
        left = middle - (wide * (GROUP_WIDTH + GROUP_GAP) - GROUP_GAP) / 2
        top = y + SWITCH_HEIGHT + FAN_GAP + row_at // columns * (GROUP_HEIGHT + GROUP_GAP)
        for at, group in enumerate(row):
            _put(placed, group, left + at * (GROUP_WIDTH + GROUP_GAP), top)
    rows = -(-len(groups) // columns)
    return FAN_GAP + rows * (GROUP_HEIGHT + GROUP_GAP) if rows else 0.0


def _place_loose(placed: Layout, groups: list[Group], y: float) -> float:
    """Places what hangs on no switch along the bottom; the lower edge."""
    if not groups:
        return y - FAN_GAP
    placed.width = max(placed.width, 2 * MARGIN + 6 * (GROUP_WIDTH + GROUP_GAP))
    columns = int((placed.width - 2 * MARGIN + GROUP_GAP) // (GROUP_WIDTH + GROUP_GAP))
    for at, group in enumerate(groups):
        row, column = divmod(at, columns)
        x = MARGIN + column * (GROUP_WIDTH + GROUP_GAP)
        _put(placed, group, x, y + row * (GROUP_HEIGHT + GROUP_GAP))
    return y + -(-len(groups) // columns) * (GROUP_HEIGHT + GROUP_GAP)


def _put(placed: Layout, group: Group, x: float, y: float) -> None:
    group.x, group.y = x, y
    count = len(group.adapters)
    pitch = min(DOT_PITCH_MAX, (GROUP_WIDTH - 10) / max(1, count - 1))
    first = x + GROUP_WIDTH / 2 - pitch * (count - 1) / 2
    group.dots = [first + at * pitch for at in range(count)]
    placed.groups.append(group)
