"""`scripts/simulate`: run seeds, say what was broken and what was checked, and replay the one that failed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

from tests.simulation.batch import Sum, run_batch
from tests.simulation.run import Outcome, run_seed


def main() -> int:
    """Run as asked; 1 when an invariant did not hold or a fleet did not come to rest."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, metavar="N", help="how many seeds (default 300)")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, metavar="K", help="only this seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2, help="at a time (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    if options.trace and options.seed is None:
        parser.error("--trace prints one seed's events: say which with --seed K")
    if options.seed is not None:
        return _replay(options.seed, options.trace)

    def tell(outcome: Outcome) -> None:
        if outcome.problem is not None:
            _print_failure(outcome)

    seeds = range(options.first, options.first + options.seeds)
    total = run_batch(seeds, processes=options.processes, on_outcome=tell)
    _print_sum(total)
    if options.json is not None:
        options.json.write_text(json.dumps(total.as_json(), indent=2) + "\n")
    return 1 if total.failures else 0


def _replay(seed: int, trace: bool) -> int:
    outcome = run_seed(seed, whole_trace=trace)
    if trace:
        sys.stdout.write("".join(f"{line}\n" for line in outcome.trace))
    if outcome.problem is not None:
        _print_failure(outcome, lines=0 if trace else 60)
        return 1
    if not trace:
        print(
            f"seed {seed}: well; {outcome.nodes} nodes, {outcome.simulated_s:.0f} s, {outcome.lines} events "
            f"(digest {outcome.digest}), at rest {outcome.converged_after_s:.0f} s after the last fault"
        )
    return 0


def _print_failure(outcome: Outcome, lines: int = 40) -> None:
    for line in outcome.trace[-lines:] if lines else []:
        print(line)
    print(f"seed {outcome.seed} FAILED: {outcome.problem}")
    print(f"replay it: scripts/simulate --seed {outcome.seed} --trace", flush=True)


def _print_sum(total: Sum) -> None:
    print(
        f"{total.seeds} seeds from {total.first} on, {total.nodes} nodes, {total.simulated_s / 3600:.1f} "
        f"simulated hours, {total.events} events, {total.served} requests served"
    )
    print(f"faults injected ({total.faults.total()}): {_listed(total.faults)}")
    print(f"invariants checked ({total.checks.total()}): {_listed(total.checks)}")
    print(
        f"worst convergence: {total.worst_s:.0f} virtual seconds (seed {total.worst_seed}); at most "
        f"{total.worst_share:.0%} of the stated bound"
    )
    failed = ", ".join(str(outcome.seed) for outcome in total.failures)
    print(f"wall time {total.wall_s:.0f} s; {f'FAILED seeds: {failed}' if failed else 'all well'}")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
