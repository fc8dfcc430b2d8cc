"""A map as a Graphviz graph: tiers as ranks, adapters grouped by node, slow cables in red."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.fabric.bundles import Bundle, bundles, count_rates
from llmgw.fabric.layout import Group, lay_out
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
    parts: dict[str, str] = {}
    for at, group in enumerate(layout.groups):
        name = f"group {at}"
        parts.update((adapter.id, name) for adapter in group.adapters)
        style = "shape=plaintext" if group.switch is not None else "style=dashed"
        lines.append(f"  {_quoted(name)} [label={_quoted(_label(group, analysis))}, {style}];")
    heights = {place.node.id: LEVELS.index(place.level) for place in layout.switches}
    for bundle in bundles(analysis, parts):
        ends = sorted((bundle.a, bundle.b), key=lambda end: heights.get(end.id, len(LEVELS)))
        if all(end.id in heights or end.id in parts for end in ends):
            lines.extend(_cables(" -- ".join(_quoted(parts.get(end.id, end.id)) for end in ends), bundle))
    return "\n".join([*lines, "}", ""])


def _label(group: Group, analysis: Analysis) -> str:
    """`node0001 mlx5_0, mlx5_1`; what nobody owns by its own name."""
    if group.owner is None:
        return group.label
    return f"{group.label} {', '.join(analysis.owners[adapter.id].adapter for adapter in group.adapters)}"


def _cables(ends: str, bundle: Bundle) -> Iterable[str]:
    if bundle.healthy:
        between = bundle.a.kind == bundle.b.kind == "switch"
        yield f"  {ends} [label={_quoted(count_rates(bundle.healthy))}];" if between else f"  {ends};"
    for cable in bundle.slow:
        ports = f"[{cable.link.a_port}]-[{cable.link.b_port}]"
        label = f"{format_rate(cable.rate)} of {format_rate(cable.expected)} {ports}"
        yield f"  {ends} [label={_quoted(label)}, color=red, fontcolor=red, penwidth=3];"


def _quoted(text: str) -> str:
    """A DOT string: only the quote and the backslash mean something in it."""
    clean = "".join(char if char.isprintable() else "?" for char in text)
    return '"' + clean.replace("\\", "\\\\").replace('"', '\\"') + '"'
