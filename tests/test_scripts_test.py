"""`scripts/test` ends with 1 when something of what it ran failed, and with 0 when nothing did."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

PYTHON = """#!/bin/sh
case "$*" in
  *"$FAILS"*) echo "failed: $*"; exit 1 ;;
esac
echo "passed: $*"
"""


@pytest.mark.parametrize("run", ["", "--lab", "--release", "--scenarios"])
@pytest.mark.parametrize(("fails", "code"), [("nothing at all", 0), ("pytest", 1)])
def test_it_ends_as_what_it_ran(tmp_path: Path, run: str, fails: str, code: int) -> None:
    done = scripts_test(tmp_path, *run.split(), fails=fails)
    assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("run", "fails"),
    [
        ("--lab", "cache_dir=.pytest_cache/fabrics"),  # beside the others
        ("--lab", "*test_real_*"),
        ("--scenarios", "-m lab"),
        ("--scenarios", "-m scenario"),
        ("--scenarios", "pytest tests/simulation"),  # beside the others
        ("--scenarios", "-n 4"),
    ],
)
def test_one_part_that_fails_is_enough_and_all_are_run(tmp_path: Path, run: str, fails: str) -> None:
    whole = scripts_test(tmp_path, run, fails="nothing at all").stdout.splitlines()
    done = scripts_test(tmp_path, run, fails=fails)
    assert done.returncode == 1, done.stdout + done.stderr
    ran = done.stdout.splitlines()
    assert [line.partition(": ")[2] for line in ran] == [line.partition(": ")[2] for line in whole]
    assert sum(line.startswith("failed: ") for line in ran) == 1


def scripts_test(folder: Path, *arguments: str, fails: str) -> subprocess.CompletedProcess[str]:
    """Run it over a Python that fails where its arguments contain `fails`."""
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / ".venv/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / "scripts/test", folder / "scripts/test")
    for name, text in (("scripts/venv", "#!/bin/sh\n"), (".venv/bin/python", PYTHON)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = {"PATH": os.environ["PATH"], "FAILS": fails}
    command = [folder / "scripts/test", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
