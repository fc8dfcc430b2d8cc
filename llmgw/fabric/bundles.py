"""Cables between the same two things, taken together: one line of a drawing. The slow ones stand alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from llmgw.fabric.expected_rate import SlowCable
from llmgw.fabric.report import Analysis
from llmgw.fabric.topology import Link, Node


class Bundle(msgspec.Struct):
    """The cables between `a` and `b` (or what each is a part of): those at their rate, and those below it."""

    a: Node
    b: Node
    healthy: list[Link]
    slow: list[SlowCable]


def bundles(analysis: Analysis, parts: Mapping[str, str] | None = None) -> list[Bundle]:
    """All cables of a map but those that return to where they begin, and those of SHARP nodes.

    `parts`: an adapter's id → the name of what it is drawn as a part of. Else each has bundles of its own.
    """
    names = parts or {}
    slow = {id(cable.link): cable for cable in analysis.slow}
    found: dict[tuple[str, str], Bundle] = {}
    for link in analysis.topology.links:
        if link.a is link.b or "sharp" in (link.a.kind, link.b.kind):
            continue
        a, b = sorted((link.a, link.b), key=lambda end: end.id)
        key = names.get(a.id, a.id), names.get(b.id, b.id)
        bundle = found.get(key)
        if bundle is None:
            bundle = found[key] = Bundle(a, b, [], [])
        if id(link) in slow:
            bundle.slow.append(slow[id(link)])
        else:
            bundle.healthy.append(link)
    return list(found.values())


def count_rates(links: Iterable[Link]) -> str:
    """`31 × 4xNDR, 1 × 4xHDR`."""
    seen = Counter(link.rate_text for link in links)
    return ", ".join(f"{count} × {rate}" for rate, count in seen.most_common())
