"""How long the control plane takes to decide. Durations come from a clock that is handed in."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmgw.metrics.histogram import TURN_BOUNDS_S, Histogram


def _turns() -> Histogram:
    return Histogram(TURN_BOUNDS_S)


@dataclass(slots=True)
class TurnTimes:
    """Since the start of this process."""

    turns: Histogram = field(default_factory=_turns)
    """Whole turns: every decision, what is carried out, and the routes that follow."""
    decisions: Histogram = field(default_factory=_turns)
    """Of these, each answer of reconcile."""
    placements: Histogram = field(default_factory=_turns)
    """Of these, the ones that placed a replica."""
