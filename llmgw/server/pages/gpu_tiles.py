"""Nodes as tiles of GPUs: each GPU a cell, drawn with few strokes, so that 3,200 of them are a light page. Pure.

A cell is as dark as its GPU is busy; what keeps one out of use is a sign in it, and a word beside the cells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmgw.messages.admin import NodeView
from llmgw.server.pages.node_words import GpuState, Tone, gpu_states, node_badges

CELL, GAP, ROW = 10, 2, 16
"""Of the drawing's units: a cell's width, what is between two, and a row with its gap."""
PER_ROW = 8
LEVELS = (10, 40, 75)
"""Percent: below the first a GPU in use is idle, above the last it is busy."""
TILES_MAX = 1024

_WORDS: Mapping[GpuState, str] = {
    "in use": "in use", "free": "free", "broken": "broken", "held": "held by others", "skipped": "skipped",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stroke:
    """One path of a tile: `kind` is its class, `d` its data."""

    kind: str
    d: str


@dataclass(frozen=True, slots=True)
class Tile:
    """One node. `note` is what is wrong in a word or two, in `tone`; `title` says all of it."""

    node_id: str
    used: int
    total: int
    tone: Tone
    note: str
    title: str
    strokes: list[Stroke]
    rows: int
    away: bool
    """Its GPUs are as they were last seen."""


def node_tile(node: NodeView) -> Tile:
    """The tile of a node."""
    states = gpu_states(node)
    counts = Counter(states)
    tone, note = _note(node, counts)
    return Tile(
        node_id=node.node_id,
        used=counts["in use"],
        total=len(states),
        tone=tone,
        note=note,
        title=_title(node, counts),
        strokes=_strokes([_kind(node, at, state) for at, state in enumerate(states)]),
        rows=-(-len(states) // PER_ROW),
        away=node.state != "ready",
    )


def _kind(node: NodeView, at: int, state: GpuState) -> str:
    """The class of a cell."""
    if state != "in use":
        return {"free": "f", "broken": "x", "held": "h", "skipped": "s"}[state]
    busy = node.gpus[at].utilization_percent
    return "u" if busy is None else f"u{sum(busy >= level for level in LEVELS)}"


def _strokes(kinds: Sequence[str]) -> list[Stroke]:
    """Neighbours of one kind are one line, which the stylesheet dashes into cells."""
    drawn: dict[str, list[str]] = {}
    at = 0
    while at < len(kinds):
        row_end = min(len(kinds), (at // PER_ROW + 1) * PER_ROW)
        end = at + 1
        while end < row_end and kinds[end] == kinds[at]:
            end += 1
        x, y = at % PER_ROW * (CELL + GAP), at // PER_ROW * ROW + (ROW - GAP) // 2
        drawn.setdefault(kinds[at], []).append(f"M{x} {y}h{(end - at) * (CELL + GAP) - GAP}")
        if kinds[at] in _SIGNS:
            signs = [_SIGNS[kinds[at]].format(x=x + step * (CELL + GAP), y=y) for step in range(end - at)]
            drawn.setdefault("sign", []).extend(signs)
        at = end
    # Signs lie on top.
    return [
        Stroke(kind, "".join(parts)) for kind, parts in sorted(drawn.items(), key=lambda one: one[0] == "sign")
    ]


_SIGNS = {
    "x": "M{x} {y}m2-3 6 6m0-6-6 6",
    "h": "M{x} {y}m2 4 6-8",
    "s": "M{x} {y}m2 0h6",
}
"""From the middle of a cell's left edge: a cross, a stroke, a dash."""


def _note(node: NodeView, counts: Counter[GpuState]) -> tuple[Tone, str]:
    """The worst of a node in a word or two."""
    state = node_badges(node)[0]
    if node.state in ("lost", "unreachable", "unknown"):
        return state.tone, state.word
    if counts["broken"]:
        return "bad", f"{counts['broken']} broken"
    errors = sum(finding.severity == "error" for finding in node.findings)
    if errors:
        return "bad", f"{errors} error{'' if errors == 1 else 's'}"
    if node.draining:
        return "warn", "draining"
    if counts["held"]:
        return "warn", f"{counts['held']} held"
    if any(finding.severity == "warning" for finding in node.findings):
        return "warn", "warning"
    return ("quiet", "cordoned") if node.cordoned else (state.tone, "")


def _title(node: NodeView, counts: Counter[GpuState]) -> str:
    """`8 GPUs: 6 in use (62 % busy), 1 free, 1 broken; cordoned; gpu-unusable`."""
    if not node.gpus:
        said = "no GPUs"
    else:
        parts = [f"{counts[state]} {word}" for state, word in _WORDS.items() if counts[state]]
        used = set(node.gpus_in_use)
        busy = [
            gpu.utilization_percent
            for gpu in node.gpus
            if gpu.index in used and gpu.utilization_percent is not None
        ]
        if busy and counts["in use"]:
            parts[0] += f" ({sum(busy) / len(busy):.0f} % busy)"
        said = f"{len(node.gpus)} GPU{'' if len(node.gpus) == 1 else 's'}: {', '.join(parts)}"
    marks = [badge.word for badge in node_badges(node) if badge.word != "ready"]
    found = sorted({finding.check for finding in node.findings if finding.severity != "info"})
    return "; ".join([said, *marks, *found])
