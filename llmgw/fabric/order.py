"""In which order a drawing names and shows things: tiers from above, what is cabled together side by side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from llmgw.fabric.topology import Node, Topology

LEVELS = ("untiered", "core", "spine", "leaf")
"""From above. A switch that no cable joins to an adapter has no tier."""


def natural_key(text: str) -> list[tuple[int, str]]:
    """`leaf-2` before `leaf-10`."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"[0-9]{1,18}|[^0-9]+", text)
    ]


def switch_labels(topology: Topology) -> dict[str, str]:
    """Names; where several switches have one (that of their product), the end of the GUID tells them apart."""
    switches = topology.of_kind("switch")
    times = Counter(switch.label for switch in switches)
    return {
        switch.id: switch.label if times[switch.label] == 1 else f"…{switch.guid_text[-6:]} {switch.label}"
        for switch in switches
    }


def order_level(level: str, switches: list[Node], across: Mapping[str, float]) -> list[Node]:
    """One level from left to right. `across`: where the switches of the levels below stand already."""
    if level == "leaf":
        # Leaves of one pod share their spines, and so stand together.
        return sorted(switches, key=lambda switch: (min(_uplinks(switch), default=""), natural_key(switch.label)))

    def middle(switch: Node) -> tuple[float, list[tuple[int, str]]]:
        below = [across[other] for other in _uplinks(switch) if other in across]
        return (sum(below) / len(below) if below else 0.0), natural_key(switch.label)

    return sorted(switches, key=middle)


def _uplinks(switch: Node) -> set[str]:
    return {other.id for link in switch.links if (other := link.other(switch)).kind == "switch"}
