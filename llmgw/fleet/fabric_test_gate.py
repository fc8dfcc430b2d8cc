"""Whether replicas of several nodes may be placed on a node's fabric by when it last passed a bandwidth test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FabricTestGate:
    """`placement.require_fabric_test`. Ages are renewed from outside, far more often than they matter."""

    required_s: float
    """A test that was passed longer ago does not count."""
    ages_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(node id, fabric) → how long ago the node last passed a test there; left out: it never did."""

    def opens(self, node_id: str, fabric: str) -> bool:
        """True when the node passed a test on the fabric lately enough."""
        age_s = self.ages_s.get((node_id, fabric))
        return age_s is not None and age_s <= self.required_s

    def why_not(self, node_id: str, fabric: str) -> str:
        """Why it does not open, and what to type."""
        age_s = self.ages_s.get((node_id, fabric))
        last = "never passed a test" if age_s is None else f"last passed a test {_age(age_s)} ago"
        return f"{fabric}: {last}; llmgw ctl fabric-test {node_id} OTHER_NODE"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
