"""Simulated fleets are broken in hundreds of ways; the invariants of DESIGN.md section 4 hold at every step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.batch import run_batch

ROOT = Path(__file__).resolve().parents[2]
# `scripts/test` runs a few, `scripts/test --scenarios` (and so CI) all of them.
SEEDS = int(os.environ.get("LLMGW_SIMULATION_SEEDS", "300"))


@pytest.mark.timeout(900)
def test_no_invariant_gives_way_and_every_fleet_comes_to_rest() -> None:
    total = run_batch(range(SEEDS))
    assert total.seeds == SEEDS
    assert not total.failures, "\n".join(
        [*total.failures[0].trace[-40:], *(f"seed {it.seed}: {it.problem}" for it in total.failures)]
    )
    assert min(total.faults.values()) > 0


def replay(seed: int, hash_seed: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--trace"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_a_seed_replays_the_same_trace_byte_for_byte() -> None:
    first, again = replay(1, "1"), replay(1, "2")
    assert first.returncode == 0, first.stderr.decode()
    assert len(first.stdout.splitlines()) > 100
    assert first.stdout == again.stdout
    assert replay(2, "1").stdout != first.stdout
