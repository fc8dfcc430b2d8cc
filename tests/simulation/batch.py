"""Many seeds on all processors, and their sum."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.run import Outcome, run_seed

PROCESSES = 2


@dataclass
class Sum:
    """What many seeds showed together."""

    first: int = 0
    seeds: int = 0
    simulated_s: float = 0.0
    wall_s: float = 0.0
    nodes: int = 0
    events: int = 0
    served: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    worst_s: float = 0.0
    """The longest way from the last fault to the desired state, in virtual seconds."""
    worst_seed: int | None = None
    worst_share: float = 0.0
    """The largest part of its bound that a seed took."""
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Take one seed's outcome in."""
        self.seeds += 1
        self.simulated_s += outcome.simulated_s
        self.nodes += outcome.nodes
        self.events += outcome.lines
        self.served += outcome.served
        self.faults += outcome.faults
        self.checks += outcome.checks
        if outcome.problem is not None:
            self.failures.append(outcome)
        elif outcome.converged_after_s is not None:
            if outcome.converged_after_s > self.worst_s:
                self.worst_s, self.worst_seed = outcome.converged_after_s, outcome.seed
            self.worst_share = max(self.worst_share, outcome.converged_after_s / outcome.bound_s)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "first_seed": self.first,
            "seeds": self.seeds,
            "simulated_s": round(self.simulated_s),
            "wall_s": round(self.wall_s, 1),
            "nodes": self.nodes,
            "events": self.events,
            "requests_served": self.served,
            "faults": dict(sorted(self.faults.items())),
            "checks": dict(sorted(self.checks.items())),
            "worst_convergence_s": self.worst_s,
            "worst_convergence_seed": self.worst_seed,
            "worst_share_of_bound": round(self.worst_share, 3),
            "failed": {str(outcome.seed): outcome.problem for outcome in self.failures},
        }


def run_batch(
    seeds: Iterable[int],
    *,
    processes: int = PROCESSES,
    failures_max: int = 10,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Sum:
    """Run seeds, some at a time; ends early after `failures_max` failures."""
    numbers = list(seeds)
    total = Sum(first=numbers[0] if numbers else 0)
    began = time.monotonic()
    # Spawned and not forked: a seed must find nothing that another part of the test run has left.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for outcome in pool.imap_unordered(_run_one, numbers):
            total.add(outcome)
            if on_outcome is not None:
                on_outcome(outcome)
            if len(total.failures) >= failures_max:
                pool.terminate()
                break
    total.failures.sort(key=lambda outcome: outcome.seed)
    total.wall_s = time.monotonic() - began
    return total


def _run_one(seed: int) -> Outcome:
    try:
        return run_seed(seed)
    except Exception:
        problem = f"the simulator itself failed: {traceback.format_exc()}"
        return Outcome(
            seed=seed,
            problem=problem,
            simulated_s=0.0,
            nodes=0,
            converged_after_s=None,
            bound_s=1.0,
            lines=0,
            digest="",
        )
