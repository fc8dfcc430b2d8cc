"""Where cables run in a drawing: each is one cubic curve, or two that follow each other."""

from __future__ import annotations

from llmgw.fabric.layout import SWITCH_HEIGHT, SWITCH_WIDTH, Group, Layout, PlacedSwitch
from llmgw.fabric.topology import Node

Curve = tuple[float, ...]
"""x, y of the start, then of two handles and of the end; of the next two handles and end; and so on."""

SPREAD_MAX = 0.42 * SWITCH_WIDTH
"""From a switch's middle, so far to either side cables leave it."""
GUTTER = 6.5
"""Beside its column of groups a cable to a lower row runs."""
HOOK = 10.0
"""Above its dot it turns to it."""
BOW = 40.0


class Curves:
    """The curves between whatever a layout has placed."""

    def __init__(self, layout: Layout) -> None:
        self._switches = {place.node.id: place for place in layout.switches}
        self._dots = {
            adapter.id: (group, x)
            for group in layout.groups
            for adapter, x in zip(group.adapters, group.dots, strict=True)
        }
        self._first_rows: dict[str, float] = {}
        """Switch → the upper edge of the first row of its fan."""
        for group in layout.groups:
            if group.switch is not None:
                self._first_rows[group.switch] = min(group.y, self._first_rows.get(group.switch, group.y))

    def between(self, a: Node, b: Node, shift: float = 0.0) -> Curve | None:
        """The curve of a cable, moved across by `shift`; None when an end is not in the drawing."""
        one, other = self._switches.get(a.id), self._switches.get(b.id)
        if one is not None and other is not None:
            return _trunk(one, other, shift)
        for switch, adapter in ((one, b), (other, a)):
            if switch is not None and adapter.id in self._dots:
                return self._fan(switch, *self._dots[adapter.id])
        if a.id in self._dots and b.id in self._dots:
            (group, x), (far_group, far_x) = self._dots[a.id], self._dots[b.id]
            return _bow(x, group.y, far_x, far_group.y, BOW / 2 + shift)
        return None

    def _fan(self, switch: PlacedSwitch, group: Group, dot: float) -> Curve:
        top = switch.y + SWITCH_HEIGHT
        first = self._first_rows.get(switch.node.id, group.y)
        lower = group.switch == switch.node.id and group.y > first + 1
        x, y = (group.x - GUTTER, first) if lower else (dot, group.y)
        out = switch.x + _within((x - switch.x) * 0.3)
        head = (out, top, out, top + (y - top) * 0.62, x, top + (y - top) * 0.3, x, y)
        if not lower:
            return head
        # Down beside the boxes, and over to the dot in the gap above its own.
        turn = group.y - HOOK
        straight = (x, y + (turn - y) / 3, x, y + (turn - y) * 2 / 3, x, turn)
        return (*head, *straight, x, turn + HOOK * 0.7, dot, turn + HOOK * 0.2, dot, group.y)


def path_of(curve: Curve) -> str:
    """As the `d` of an SVG path."""
    first, *rest = (f"{curve[at]:.1f} {curve[at + 1]:.1f}" for at in range(0, len(curve), 2))
    return f"M{first}C{' '.join(rest)}"


def point_on(curve: Curve, part: float) -> tuple[float, float]:
    """Where a curve is after this part of its way, 0 to 1; of several, of the first."""
    rest = 1 - part
    weights = (rest**3, 3 * rest**2 * part, 3 * rest * part**2, part**3)
    x = sum(weight * curve[2 * at] for at, weight in enumerate(weights))
    return x, sum(weight * curve[2 * at + 1] for at, weight in enumerate(weights))


def _trunk(a: PlacedSwitch, b: PlacedSwitch, shift: float) -> Curve:
    """From the upper switch's lower edge to the upper edge of the lower; side by side, a bow above both."""
    upper, lower = (a, b) if a.y <= b.y else (b, a)
    if upper.y == lower.y:
        return _bow(upper.x, upper.y, lower.x, lower.y, BOW + min(abs(lower.x - upper.x) / 7, 260) + shift)
    out = upper.x + _within((lower.x - upper.x) * 0.1) + shift
    into = lower.x + _within((upper.x - lower.x) * 0.1) + shift
    top = upper.y + SWITCH_HEIGHT
    middle = (top + lower.y) / 2
    return out, top, out, middle, into, middle, into, lower.y


def _bow(x: float, y: float, far_x: float, far_y: float, height: float) -> Curve:
    return x, y, x, y - height, far_x, far_y - height, far_x, far_y


def _within(offset: float) -> float:
    return max(-SPREAD_MAX, min(SPREAD_MAX, offset))
