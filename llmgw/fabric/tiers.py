"""Leaf, spine, core: a switch's distance from compute. A ring has no spine; a test host makes no leaf."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from llmgw.fabric.topology import Node, Topology

Tier = Literal["leaf", "spine", "core"]
TIERS: tuple[Tier, ...] = ("leaf", "spine", "core")

FEW_ADAPTERS_MAX = 2
"""A switch with so few adapters may be a spine with a test host; one with more is a leaf."""
FEW_PART = 8
"""… and only where leaves usually have this many times more."""


def find_tiers(topology: Topology, not_compute: Collection[str] = ()) -> dict[str, Tier]:
    """The tier of every switch that reaches an adapter, by node id.

    `not_compute`: ids of adapters that are no compute (the hosts of subnet managers). SHARP nodes and routers
    never count. A switch no cable joins to an adapter has no tier.
    """
    neighbours = {switch.id: _neighbours(switch) for switch in topology.of_kind("switch")}
    adapters = {switch.id: _adapters(switch, not_compute) for switch in topology.of_kind("switch")}
    leaves = {switch for switch, count in adapters.items() if count}
    leaves -= _spines_with_a_test_host(leaves, adapters, neighbours)
    distance = _distances(leaves, neighbours)
    for switch in _rest_of_rings(leaves, neighbours):
        distance[switch] = 0
    return {switch: TIERS[min(far, 2)] for switch, far in distance.items()}


def leaf_of(adapter: Node, tiers: Mapping[str, Tier], port: int | None = None) -> Node | None:
    """The leaf that an adapter hangs on, or one of its ports does; None with two of them (a dual-port card)."""
    leaves = {
        other.id: other
        for link in adapter.links
        if tiers.get((other := link.other(adapter)).id) == "leaf" and port in (None, link.port_of(adapter))
    }
    return next(iter(leaves.values())) if len(leaves) == 1 else None


def _neighbours(switch: Node) -> set[str]:
    others = (link.other(switch) for link in switch.links)
    return {other.id for other in others if other.kind == "switch" and other is not switch}


def _adapters(switch: Node, not_compute: Collection[str]) -> int:
    others = (link.other(switch) for link in switch.links)
    return sum(other.kind == "adapter" and other.id not in not_compute for other in others)


def _spines_with_a_test_host(
    leaves: set[str], adapters: dict[str, int], neighbours: dict[str, set[str]]
) -> set[str]:
    """Switches with an adapter or two that are cabled like spines.

    What a switch is, its likes are: those that have the same switches as neighbours. A small leaf shares its
    neighbours with other leaves, a spine with switches that have no adapter. Where no other is cabled alike,
    a switch between leaves that know each other only through such switches is a spine.
    """
    if not leaves:
        return set()
    usual = _usual([adapters[switch] for switch in leaves])
    most = min(FEW_ADAPTERS_MAX, max(1, usual // FEW_PART)) if usual > FEW_ADAPTERS_MAX else 0
    few = {switch for switch in leaves if adapters[switch] <= most}
    full = leaves - few
    bare = neighbours.keys() - leaves
    found = set()
    for switch in few:
        around = neighbours[switch]
        near = {other for one in around for other in neighbours.get(one, ())} - {switch}
        like_leaf = _likeness(around, near & full, neighbours)
        like_bare = _likeness(around, near & bare, neighbours)
        if like_leaf == like_bare:
            beside = around & full
            alike = len(beside) > 1 and not any(neighbours[leaf] & full for leaf in beside)
        else:
            alike = like_bare > like_leaf
        if alike:
            found.add(switch)
    return found


def _usual(counts: list[int]) -> int:
    """Half of all adapters are on switches with so many or more: many small ones do not change it."""
    left = sum(counts) / 2
    for count in sorted(counts, reverse=True):
        left -= count
        if left <= 0:
            return count
    return 0


def _likeness(around: set[str], others: Iterable[str], neighbours: dict[str, set[str]]) -> float:
    """The largest share of neighbours in common with one of `others` (Jaccard's index)."""
    return max((len(around & neighbours[one]) / len(around | neighbours[one]) for one in others), default=0.0)


def _distances(starts: set[str], neighbours: dict[str, set[str]]) -> dict[str, int]:
    distance = dict.fromkeys(starts, 0)
    reached = list(starts)
    for switch in reached:
        for other in neighbours.get(switch, ()):
            if other not in distance:
                distance[other] = distance[switch] + 1
                reached.append(other)
    return distance


def _rest_of_rings(leaves: set[str], neighbours: dict[str, set[str]]) -> set[str]:
    """Switches without adapters in a ring of switches in which leaves are joined to leaves."""
    found: set[str] = set()
    seen: set[str] = set()
    for start in leaves:
        if start in seen:
            continue
        part = _distances({start}, neighbours).keys()
        seen |= part
        ring = len(part) > 2 and all(len(neighbours.get(switch, ())) == 2 for switch in part)
        if ring and any(neighbours[switch] & leaves for switch in part & leaves):
            found |= part - leaves
    return found
