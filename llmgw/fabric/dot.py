"""A map as a Graphviz graph: tiers as ranks, adapters grouped by node, slow cables in red."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.fabric.layout import Bundle, PlacedSwitch, Slot, count_rates, lay_out
from llmgw.fabric.order import LEVELS
from llmgw.fabric.rates import format_rate
from llmgw.fabric.report import Analysis


def draw_dot(analysis: Analysis) -> str:
    """The whole map: `dot -Tsvg`, or `sfdp` for large ones."""
    layout = lay_out(analysis)
    lines = [
        "graph fabric {",
        '  graph [rankdir=TB, ranksep=1.6, nodesep=0.15, fontname="sans-serif"];',
        '  node [shape=box, fontsize=9, fontname="sans-serif"];',
        '  edge [color="#78909c", fontsize=8];',
    ]
    for level in LEVELS:
        switches = [place for place in layout.switches if place.level == level]
        if switches:
            lines.append("  { rank=same;")
            lines.extend(f"    {_quoted(place.node.id)} [label={_quoted(place.label)}];" for place in switches)
            lines.append("  }")
    for bundle in layout.bundles:
        lines.extend(_cables(bundle))
    for place in layout.switches:
        for at, slot in enumerate(place.slots):
            lines.extend(_slot(place, at, slot))
    lines.extend(f"  {_quoted(node.id)} [label={_quoted(node.label)}, style=dashed];" for node in layout.loose)
    return "\n".join([*lines, "}", ""])


def _cables(bundle: Bundle) -> Iterable[str]:
    upper, lower = sorted((bundle.a, bundle.b), key=lambda place: LEVELS.index(place.level))
    ends = f"{_quoted(upper.node.id)} -- {_quoted(lower.node.id)}"
    slow = {id(cable.link) for cable in bundle.slow}
    healthy = [link for link in bundle.links if id(link) not in slow]
    if healthy:
        yield f"  {ends} [label={_quoted(count_rates(healthy))}];"
    for cable in bundle.slow:
        ports = f"[{cable.link.a_port}]-[{cable.link.b_port}]"
        label = f"{format_rate(cable.rate)} of {format_rate(cable.expected)} {ports}"
        yield f"  {ends} [label={_quoted(label)}, color=red, fontcolor=red, penwidth=3];"


def _slot(place: PlacedSwitch, at: int, slot: Slot) -> Iterable[str]:
    name = _quoted(f"{place.node.id} row {at}")
    cable = f"{_quoted(place.node.id)} -- {name}"
    yield f"  {name} [label={_quoted(slot.label)}, shape=plaintext];"
    if slot.slow:
        slow = slot.slow[0]
        label = f"{format_rate(slow.rate)} of {format_rate(slow.expected)}"
        yield f"  {cable} [label={_quoted(label)}, color=red, fontcolor=red, penwidth=3];"
    else:
        yield f"  {cable};"


def _quoted(text: str) -> str:
    """A DOT string: only the quote and the backslash mean something in it."""
    clean = "".join(char if char.isprintable() else "?" for char in text)
    return '"' + clean.replace("\\", "\\\\").replace('"', '\\"') + '"'
