"""The workflow that makes releases runs what is there: its scripts, their options, and jobs that fit together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw.release.files import Kind, name_of

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / ".github/workflows/release.yml"
PATH = re.compile(r"(?:^|[\s(/\"])((?:scripts|llmgw|tests|docs|\.ci)/[\w./-]+)")


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    loaded = yaml.safe_load(FILE.read_text())
    assert isinstance(loaded, dict)
    return loaded


def commands(workflow: dict[Any, Any]) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_every_path_that_is_named_is_there(workflow: dict[Any, Any]) -> None:
    named = {found for command in commands(workflow) for found in PATH.findall(command)}
    assert {"scripts/build", "scripts/sign", ".ci/run", "llmgw/release/install.sh", "docs/releases.md"} <= named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    scripts = [path for path in named if path.startswith(("scripts/", ".ci/"))]
    assert [path for path in scripts if not os.access(ROOT / path, os.X_OK)] == []


def test_every_kind_is_built_once(workflow: dict[Any, Any]) -> None:
    kinds = [
        kind
        for command in commands(workflow)
        for found in re.findall(r"scripts/build --only (\S+)", command)
        for kind in found.split(",")
    ]
    help_ = subprocess.run(
        [sys.executable, "-m", "building", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert sorted(kinds) == sorted(["sdist", "wheel", "wheels", "folder", "single"])
    assert all(kind in help_ for kind in kinds)


def test_each_command_is_shell(workflow: dict[Any, Any]) -> None:
    for command in commands(workflow):
        text = re.sub(r"\$\{\{.*?\}\}", "x86_64", command)
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_jobs_wait_for_jobs_that_exist_and_all_come_before_publishing(workflow: dict[Any, Any]) -> None:
    jobs = workflow["jobs"]
    for job in jobs.values():
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(jobs)
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}


def test_both_machines_are_built_and_tried(workflow: dict[Any, Any]) -> None:
    for name in ("wheels", "frozen", "installs"):
        job = workflow["jobs"][name]
        assert job["strategy"]["matrix"]["machine"] == ["x86_64", "aarch64"]
        assert "ubuntu-24.04-arm" in job["runs-on"]


def test_only_publishing_may_write_and_sees_the_key(workflow: dict[Any, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert ("permissions" in job) == (name == "publish")
        assert ("secrets." in str(job)) == (name == "publish")
    # A secret that a command line names is in the process list and, echoed, in the log.
    assert not any("secrets." in command for command in commands(workflow))


def test_the_record_of_glibc_is_looked_at_as_the_single_file_has_it(workflow: dict[Any, Any]) -> None:
    (pattern,) = re.findall(r"grep -a -x '(.*)'", "\n".join(commands(workflow)))
    head = (ROOT / "building/single.sh").read_text()
    for version, fits in (("2.17", True), ("2.28", True), ("2.29", False), ("2.36", False)):
        done = subprocess.run(
            ["grep", "-a", "-x", pattern], input=head.replace("@GLIBC@", version), text=True, capture_output=True
        )
        assert (done.returncode == 0) is fits
    assert name_of(Kind.SINGLE, "*", "x86_64") in f"llmgw-*-linux-x86_64 {commands(workflow)}"
