"""The benches run, and their figures can be read by programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.chromium import chromium_path

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.scenario
def test_the_agents_bench_loses_no_transition_and_sees_everyone_back_after_a_restart(tmp_path: Path) -> None:
    out = tmp_path / "agents.json"
    small = ["--count", "8", "--seconds", "6", "--settle", "4", "--kills", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "agents", *small, "--json", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # 1: memory has grown, which six seconds say nothing about
    figures = {item["what"]: item["value"] for item in json.loads(out.read_text())["figures"]}
    assert figures["transitions sent and acknowledged"] > 0
    assert figures["kill -9 of the server while they flow"] == 3
    assert figures["of these not in history"] == 0
    assert figures["of these twice in history"] == 0
    assert figures['"database is locked" in the log'] == 0
    assert figures["kill -9 of the server to all agents back"] > 0


def test_the_plan_bench_prints_a_table_and_writes_the_same_as_json(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = subprocess.run(
        [*(sys.executable, "-m", "tests.bench", "plan", "--nodes", "40", "--replicas", "20"), "--json", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a steady plan, median" in done.stdout
    figures = {item["what"]: item["value"] for item in json.loads(out.read_text())["figures"]}
    assert figures["ready replicas after the fill"] == 20
    assert figures["a steady plan, median"] > 0


def test_the_fabric_bench_keeps_what_was_promised(tmp_path: Path) -> None:
    out = tmp_path / "fabric.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.bench", "fabric", "--adapters", "1250", "--repeat", "1"),
            "--json",
            str(out),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    limits = {item["what"]: item["limit"] for item in told["figures"] if item["limit"]}
    assert limits == {"a director's map, read and judged": 0.5, "the large map, read and judged": 2.0}
    assert [row[0] for row in told["growth"][0]["rows"]] == ["625", "1250"]


def test_the_affinity_bench_finds_conversations_in_their_caches_and_spreads_them(tmp_path: Path) -> None:
    out = tmp_path / "affinity.json"
    small = ["--requests", "1500", "--conversations", "100"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "affinity", *small, "--json", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # 1: limits are those of the whole size
    figures = {item["what"]: item["value"] for item in json.loads(out.read_text())["figures"]}
    found = "{}: tokens found in the cache"
    assert figures[found.format("with affinity")] > figures[found.format("by least outstanding")] + 5
    assert figures["tokens read with affinity, of those without"] < 0.7
    assert figures["with affinity: the most outstanding, of its bound"] <= 1


@pytest.mark.browser
@pytest.mark.skipif(chromium_path() is None, reason="no Chromium: apt-get install chromium")
def test_the_pages_bench_makes_and_shows_every_page_of_a_fleet(tmp_path: Path) -> None:
    pytest.importorskip("playwright", reason="pip install playwright drives the browser")
    out = tmp_path / "pages.json"
    small = ["--nodes", "20", "--models", "4", "--repeat", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "pages", *small, "--json", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(out.read_text())
    measured = {each["path"]: each for each in told["measurements"]}
    for path in ("/admin", "/admin/nodes", "/admin/fabrics", "/admin/nodes/node0000", "/admin/models/model-00"):
        page = measured[path]
        assert 0 < page["gzip"] < page["raw"]
        assert 0 < page["frame"] < page["raw"]
        assert page["made"] > 0
        assert page["paint"] > 0
    limits = {item["what"]: item["limit"] for item in told["figures"] if item["limit"]}
    assert limits["/admin made, median"] == 1.0
    assert limits["/admin/nodes before its data"] == 300.0
