"""What is known of the fabrics beyond what nodes offer: read by placement, given by the server's watch.

Plain facts, each of which may be missing: a fleet whose fabric nobody has mapped is placed as well as without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node sits on a fabric that it offers."""

    physical: str | None = None
    """Id of the physical fabric, as the managers and maps tell; None is unknown."""
    leaves: tuple[str, ...] = ()
    """The leaf switch (its id on the map) of each of the node's adapters on this fabric, in the order of the
    adapters, "" for an adapter whose leaf is unknown; empty when all are."""
    aligned: bool | None = None
    """True when each adapter is on a leaf of its own rail; None is unknown."""
    doubts: tuple[str, ...] = ()
    """Why the node is better not used on it, in sentences: a slow cable, errors that grow, a failed test."""


NOWHERE = Place()
"""Where a node sits of which nothing is known."""


@dataclass(frozen=True)
class FabricFacts:
    """All that is known at one time."""

    places: Mapping[tuple[str, str], Place] = field(default_factory=dict)
    """(node id, the operator's name of a fabric) → where the node sits on it."""
    distances: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(leaf, leaf), the lower id first → tiers crossed between them: 1 over a spine, 2 over a core. A pair that
    is not in it is not known to be joined."""
    leaf_names: Mapping[str, str] = field(default_factory=dict)
    """Leaf → what people call it."""

    def place(self, node_id: str, fabric: str) -> Place:
        """Where a node sits on a fabric; a place of which nothing is known when nobody has said."""
        return self.places.get((node_id, fabric), NOWHERE)

    def distance(self, one: str, other: str) -> int:
        """Tiers crossed between two leaves; `far` when nobody knows how they are joined."""
        if one == other:
            return 0
        return self.distances.get((one, other) if one < other else (other, one), self.far)

    @cached_property
    def far(self) -> int:
        """More tiers than are crossed anywhere: between leaves that are not known to be joined."""
        return 1 + max(self.distances.values(), default=0)

    @cached_property
    def split(self) -> Mapping[str, tuple[str, ...]]:
        """Names that stand for several physical fabrics → those, in order."""
        known: dict[str, set[str]] = {}
        for (_, name), place in self.places.items():
            if place.physical is not None:
                known.setdefault(name, set()).add(place.physical)
        return {name: tuple(sorted(ids)) for name, ids in known.items() if len(ids) > 1}

    @cached_property
    def mapped(self) -> frozenset[tuple[str, str | None]]:
        """Networks (as `network` tells them) on which the leaf of some node is known."""
        found = {self.network(node_id, name) for (node_id, name), place in self.places.items() if place.leaves}
        return frozenset(network for network in found if network is not None)

    def network(self, node_id: str, fabric: str) -> tuple[str, str | None] | None:
        """What a node shares with those that it may form a replica with: the fabric's name, and the physical
        fabric where the name stands for several; None when nobody knows on which of those the node is.

        Where no more than one physical fabric is known by the name, nodes of which nothing is known are taken to
        be on it, as if there were no facts. Where there are two, such a node may be on either, and two such nodes
        on one each.
        """
        if fabric not in self.split:
            return fabric, None
        physical = self.place(node_id, fabric).physical
        return None if physical is None else (fabric, physical)
