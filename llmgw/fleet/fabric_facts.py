"""What is known of the fabrics beyond what nodes offer: read by placement, given by the server's watch.

Plain facts, each of which may be missing: a fleet whose fabric nobody has mapped is placed as well as without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node sits on a fabric that it offers."""

    physical: str | None = None
    """Id of the physical fabric, as the managers and maps tell; None is unknown."""
    leaves: tuple[str, ...] = ()
    """The leaf switch (its id on the map) of each of the node's adapters on this fabric, in the order of the
    adapters; empty is unknown."""
    aligned: bool | None = None
    """True when each adapter is on a leaf of its own rail; None is unknown."""
    doubts: tuple[str, ...] = ()
    """Why the node is better not used on it, in sentences: a slow cable, errors that grow, a failed test."""


@dataclass(frozen=True, slots=True)
class FabricFacts:
    """All that is known at one time."""

    places: Mapping[tuple[str, str], Place] = field(default_factory=dict)
    """(node id, the operator's name of a fabric) → where the node sits on it."""
    distances: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(leaf, leaf), the lower id first → tiers crossed between them: 1 over a spine, 2 over a core. A pair that
    is not in it is not known to be joined."""
    leaf_names: Mapping[str, str] = field(default_factory=dict)
    """Leaf → what people call it."""
