"""The last tagged release's agent works with this checkout's server."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from types import MethodType

import pytest

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.hardware import HARDWARE_ENV
from tests.endtoend.conftest import RunningFleet

CHECKOUT = Path(__file__).parent.parent.parent


def last_release() -> str | None:
    """The tag of the last release before this checkout; None when there is none, or no history."""
    words = ["git", "-C", str(CHECKOUT), "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def test_the_last_releases_agent_serves_under_this_server(tmp_path: Path) -> None:
    tag = last_release()
    if tag is None:
        pytest.skip("no release has been tagged yet")
    packed = subprocess.run(["git", "-C", str(CHECKOUT), "archive", tag], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tmp_path / "release", filter="data")

    def start_agent(demo: DemoFleet, node: str) -> None:
        env = {HARDWARE_ENV: str(demo.folder / node / "hardware"), "PYTHONPATH": str(tmp_path / "release")}
        demo._spawn(node, ["agent", "--config", str(demo.folder / node / "agent.yaml")], env)

    def of_the_release(demo: DemoFleet) -> None:
        demo.start_agent = MethodType(start_agent, demo)  # type: ignore[method-assign]
        words = [sys.executable, "-m", "llmgw", "--version"]
        env = {"PYTHONPATH": str(tmp_path / "release")}
        said = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert said == f"llmgw {tag.removeprefix('v')}\n"

    running = RunningFleet(tmp_path / "demo", adjust=of_the_release)
    try:
        running.wait_ready()
        assert {node["version"] for node in running.get("nodes")} == {tag.removeprefix("v")}
        assert running.chat("demo/big").status_code == 200
    finally:
        running.close()
