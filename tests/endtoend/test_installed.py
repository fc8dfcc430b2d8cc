"""The package as others get it: installed into an empty environment, used from any folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.endtoend.test_demo import belonging_to

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.scenario
@pytest.mark.timeout(420)
def test_an_installed_llmgw_loses_a_node_and_serves_on(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=150)
    install = [str(environment / "bin" / "pip"), "install", "--quiet", str(ROOT)]
    done = subprocess.run(install, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # Nothing of this checkout must be needed: neither its path nor the environment of the tests.
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(elsewhere), "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [str(environment / "bin" / "llmgw"), "demo", "--scenario", "node-loss"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=elsewhere,
        env=bare,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "scenario node-loss: passed" in run.stdout
    assert belonging_to(str(elsewhere)) == []
