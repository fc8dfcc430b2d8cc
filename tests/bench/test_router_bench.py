"""`scripts/bench router` measures what it says: every suite, in a moment, on whatever is here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.figures import Figures
from tests.bench.router import tools
from tests.bench.router.features import costs_us
from tests.bench.router.goals import DIRECT, OURS, added_latency, speed
from tests.bench.router.measurement import Measurement
from tests.bench.router.report import fill, markdown, write_markdown

ROOT = Path(__file__).parent.parent.parent
QUICK = ["--rounds", "1", "--seconds", "0.3", "--leavers", "3", "--held", "20", "--streams", "40"]
needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("cc", "gcc", "clang")), reason="no C compiler"
)


def bench(*arguments: str, out: Path) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "router", *QUICK, *arguments, "--json", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode in (0, 1), (
        done.stderr
    )  # 1: a goal is missed, which a third of a second says nothing about
    return json.loads(out.read_text()), done.stdout


@needs_compiler
def test_it_measures_the_gateway_beside_nginx(tmp_path: Path) -> None:
    told, shown = bench("--targets", "llmgw,nginx", "--only", "request,flat-out", out=tmp_path / "out.json")
    ours = {each["suite"]: each for each in told["measurements"] if each["target"] == "llmgw"}
    for suite in ("request", "flat-out"):
        assert ours[suite]["operations"] > 0
        assert ours[suite]["cpu_us"] > 0
        assert ours[suite].get("errors", 0) == 0
    figures = {each["what"]: each for each in told["figures"]}
    assert figures["errors, non-200 and short streams over all runs"]["value"] == 0
    if any(each["target"] == "nginx" for each in told["measurements"]):
        assert figures["request, 32 connections, speed against nginx"]["least"] == 0.42
    else:
        assert any("nginx is left out" in note for note in told["notes"])
    assert "CPU time an operation" in shown


@pytest.mark.scenario
@needs_compiler
def test_every_suite_of_the_gateway_runs_without_an_error(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    told, _ = bench("--targets", "direct,llmgw", "--markdown", str(table), out=tmp_path / "out.json")
    ours = {each["suite"]: each for each in told["measurements"] if each["target"] == "llmgw"}
    assert {"request", "rate", "paced", "large-body", "memory", "many-streams"} <= set(ours)
    assert {"leaving-mid-stream", "leaving-first", "leaving-whole", "leaving-queued"} <= set(ours)
    assert all(each.get("errors", 0) == 0 and each.get("missed", 0) == 0 for each in ours.values())
    features = {each["target"] for each in told["measurements"] if each["suite"] == "features"}
    assert {"nothing", "keys", "affinity", "queue", "usage", "telemetry", "everything"} == features
    assert "| what | goal | measured | met |" in table.read_text()


def test_ratios_are_taken_within_a_round_and_then_their_median() -> None:
    found = [
        Measurement(suite="request", target=target, round=number, cpu_us=cpu_us)
        for number, (ours, theirs) in enumerate([(50, 100), (100, 150), (20, 80)])
        for target, cpu_us in ((OURS, ours), ("smg", theirs))
    ]
    assert speed(found, "request", "smg") == 2.0
    assert speed(found, "request", "nginx") is None
    found = [
        Measurement(suite="rate", target=target, p50_us=p50_us)
        for target, p50_us in ((DIRECT, 100), (OURS, 200), ("vllm-router", 300))
    ]
    assert added_latency(found, "rate", "vllm-router") == 0.5


def test_a_features_cost_is_the_difference_to_what_ran_before_and_after_it() -> None:
    turns = [
        ("nothing", 40),
        ("keys", 44),
        ("nothing", 42),
        ("queue", 42),
        ("nothing", 40),
        ("keys", 48),
        ("nothing", 50),
    ]
    found = [Measurement(suite="features", target=target, cpu_us=cpu_us) for target, cpu_us in turns]
    assert costs_us(found, "keys") == [3, 3]
    assert costs_us(found, "queue") == [1]
    assert costs_us(found, "usage") == []


def test_a_goal_that_is_missed_is_told_as_missed() -> None:
    figures = Figures("router")
    found = [
        Measurement(suite="request", target=OURS, cpu_us=50, system_us=20),
        Measurement(suite="request", target="nginx", cpu_us=10, system_us=9),
        Measurement(
            suite="leaving-first", target=OURS, operations=500, seen=499, missed=1, max_ms=3, p50_us=1000
        ),
    ]
    fill(figures, found, {OURS: "1", "nginx": "2"}, ["It rained."])
    missed = {each.what for each in figures.beyond_limits()}
    assert missed == {"request, 32 connections, speed against nginx", "client gone, missed by the engine"}
    text = markdown(figures, {OURS: "1", "nginx": "2"})
    assert "| request, 32 connections, speed against nginx | at least 0.42 | 0.2 × | no |" in text
    assert "- It rained." in text


def test_the_tables_go_between_a_documents_marks_and_replace_those_of_before(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text("# Title\n\n<!-- figures -->\nold\n<!-- /figures -->\n\nThe end.\n")
    write_markdown(document, "| new |\n")
    write_markdown(document, "| newer |\n")
    assert document.read_text() == "# Title\n\n<!-- figures -->\n| newer |\n<!-- /figures -->\n\nThe end.\n"
    write_markdown(tmp_path / "alone.md", "| new |\n")
    assert (tmp_path / "alone.md").read_text() == "| new |\n"


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tools.shutil, "which", lambda name: None)
    with pytest.raises(tools.ToolError, match="no C compiler here; install one"):
        tools.build(tmp_path)
