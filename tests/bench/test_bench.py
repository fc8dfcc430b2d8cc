"""The benches run, and their figures can be read by programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_plan_bench_prints_a_table_and_writes_the_same_as_json(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = subprocess.run(
        [*(sys.executable, "-m", "tests.bench", "plan", "--nodes", "40", "--replicas", "20"), "--json", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a steady plan, median" in done.stdout
    figures = {item["what"]: item["value"] for item in json.loads(out.read_text())["figures"]}
    assert figures["ready replicas after the fill"] == 20
    assert figures["a steady plan, median"] > 0
