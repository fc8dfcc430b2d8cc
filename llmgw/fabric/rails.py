"""Rails: whether every node's Nth adapter has its own leaf, and which adapters are cabled to another rail's."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from llmgw.fabric.names import Owner
from llmgw.fabric.tiers import Tier, leaf_of
from llmgw.fabric.topology import Topology

OWN_LEAF_SHARE = 0.75
"""A leaf is a rail's own when so many of its adapters are that rail's."""
LABEL_SHARE_MIN = 0.05
"""A label that fewer nodes of its scheme carry is no rail: a test card, a storage card."""


class Rail(msgspec.Struct):
    """The Nth adapter of every node. `aligned`: it has leaves of its own."""

    rail: int
    labels: list[str]
    leaves: list[str]
    """Ids of the switches whose adapters are mostly this rail's."""
    adapters: int
    aligned: bool


class OffRail(msgspec.Struct):
    """An adapter on a leaf of another rail. `rail` is its own, `leaf_rail` that of the leaf."""

    node: str
    adapter: str
    rail: int
    leaf: str
    leaf_rail: int


class SwappedPair(msgspec.Struct):
    """Two adapters of one node, each on the other's leaf: the two cables were exchanged."""

    node: str
    adapters: tuple[str, str]
    rails: tuple[int, int]
    leaves: tuple[str, str]


class Rails(msgspec.Struct):
    """`rails` empty: nodes have one adapter each, or nothing tells which adapter is which."""

    rails: list[Rail]
    swapped: list[SwappedPair]
    off_rail: list[OffRail]
    """Of fabrics that are rail-aligned, what is not, without the swapped pairs."""
    of: dict[str, int] = {}
    """An adapter's id on the map → its rail."""


class _Place(msgspec.Struct):
    node_id: str
    owner: Owner
    leaf: str
    rail: int


def find_rails(
    topology: Topology,
    tiers: Mapping[str, Tier],
    owners: Mapping[str, Owner],
    orders: Mapping[str, Sequence[str]] | None = None,
) -> Rails:
    """The rails of a fabric.

    `orders`: each node's adapters on this fabric in their order, where its agent tells it. Else an adapter's
    place is that of its label's number among all labels of its scheme (HCA-1, HCA-2, HCA-5: the third is
    HCA-5), so that a node that lacks one does not shift the others.
    """
    places = _places(topology, tiers, owners, orders or {})
    by_rail = Counter(place.rail for place in places)
    if len(by_rail) < 2:
        return Rails([], [], [])
    on_leaf: dict[str, Counter[int]] = defaultdict(Counter)
    for place in places:
        on_leaf[place.leaf][place.rail] += 1
    rail_of_leaf = {
        leaf: rail
        for leaf, seen in on_leaf.items()
        for rail, count in seen.most_common(1)
        if count >= OWN_LEAF_SHARE * seen.total()
    }
    rails = [_rail(rail, places, rail_of_leaf) for rail in sorted(by_rail)]
    rail_of = {place.node_id: place.rail for place in places}
    # In a fabric without rails every adapter would be off one.
    off = [place for place in places if rail_of_leaf.get(place.leaf, place.rail) != place.rail]
    if not all(rail.aligned for rail in rails):
        return Rails(rails, [], [], rail_of)
    swapped, rest = _swapped_pairs(off, rail_of_leaf)
    return Rails(rails, swapped, [_off_rail(place, rail_of_leaf) for place in rest], rail_of)


def _places(
    topology: Topology,
    tiers: Mapping[str, Tier],
    owners: Mapping[str, Owner],
    orders: Mapping[str, Sequence[str]],
) -> list[_Place]:
    numbers = _numbers_of_labels(owners)
    found = []
    for node in topology.of_kind("adapter"):
        owner, leaf = owners.get(node.id), leaf_of(node, tiers)
        if owner is None or leaf is None:
            continue
        order = orders.get(owner.node)
        if order is not None:
            rail = order.index(owner.adapter) + 1 if owner.adapter in order else None
        else:
            rail = numbers.get(owner.adapter)
        if rail is not None:
            found.append(_Place(node.id, owner, leaf.id, rail))
    return found


def _numbers_of_labels(owners: Mapping[str, Owner]) -> dict[str, int]:
    """`HCA-5` → 3 where HCA-1, HCA-2, HCA-5 and HCA-6 are what nodes of that scheme carry."""
    seen: dict[str, Counter[tuple[int, str]]] = defaultdict(Counter)
    for owner in owners.values():
        match = re.fullmatch(r"(.*?)(\d+)", owner.adapter)
        if match:
            seen[match[1]][int(match[2]), owner.adapter] += 1
    found = {}
    for labels in seen.values():
        most = max(labels.values())
        usual = sorted(label for label, count in labels.items() if count >= LABEL_SHARE_MIN * most)
        found.update({label: at for at, (_, label) in enumerate(usual, 1)})
    return found


def _rail(rail: int, places: Sequence[_Place], rail_of_leaf: Mapping[str, int]) -> Rail:
    mine = [place for place in places if place.rail == rail]
    leaves = sorted(leaf for leaf, its_rail in rail_of_leaf.items() if its_rail == rail)
    on_own = sum(rail_of_leaf.get(place.leaf) == rail for place in mine)
    return Rail(
        rail=rail,
        labels=sorted({place.owner.adapter for place in mine}),
        leaves=leaves,
        adapters=len(mine),
        aligned=on_own >= OWN_LEAF_SHARE * len(mine),
    )


def _swapped_pairs(
    off: Sequence[_Place], rail_of_leaf: Mapping[str, int]
) -> tuple[list[SwappedPair], list[_Place]]:
    by_node: dict[str, list[_Place]] = defaultdict(list)
    for place in off:
        by_node[place.owner.node].append(place)
    swapped, rest = [], []
    for node, places in by_node.items():
        while places:
            first = places.pop(0)
            other = next(
                (
                    place
                    for place in places
                    if rail_of_leaf[first.leaf] == place.rail and rail_of_leaf[place.leaf] == first.rail
                ),
                None,
            )
            if other is None:
                rest.append(first)
                continue
            places.remove(other)
            first, other = sorted((first, other), key=lambda place: place.rail)
            swapped.append(
                SwappedPair(
                    node=node,
                    adapters=(first.owner.adapter, other.owner.adapter),
                    rails=(first.rail, other.rail),
                    leaves=(first.leaf, other.leaf),
                )
            )
    return swapped, rest


def _off_rail(place: _Place, rail_of_leaf: Mapping[str, int]) -> OffRail:
    return OffRail(place.owner.node, place.owner.adapter, place.rail, place.leaf, rail_of_leaf[place.leaf])
