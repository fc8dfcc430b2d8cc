"""Every command in the README and in docs/ is run, or named here with the test that runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.sim.scenarios import SCENARIOS
from tests.endtoend.conftest import RunningFleet

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Run by other tests: the demo and its scenarios (test_demo.py, test_coming_back.py, test_demo_gguf.py), the
# simulator (tests/simulation), the fuzzing (test_fuzz.py), the package (test_installed.py), the benches,
# releases (tests/release, tests/ctl/test_release.py), the suite itself.
ELSEWHERE = re.compile(
    r"scripts/(demo|test|check|simulate|fuzz|bench|build|sign)( |$)|pipx install llmgw$|llmgw demo --scenario |"
    r"sh install.sh |sha256sum |llmgw ctl release verify "
)
# Roll a fleet over to another program: test_upgrade.py.
UPGRADE = re.compile(r"llmgw ctl upgrade ")
# They name another host.
OTHER_HOST = re.compile(r"export LLMGW_CTL_")
# They change the machine, or ask its systemd: nothing for a test, least of all one that runs as root.
MACHINE = re.compile(r"(useradd|systemctl|journalctl) |(\S*bin/)?llmgw server install( |$)")
# What is run here stays in the test's folder and fleet. Everything that is not named is refused, not tried.
HERE = re.compile(r"(\.venv/bin/)?llmgw |curl |token=\$\(python3 |hardware/nvidia-smi ")


def commands(path: Path) -> list[str]:
    """The commands of a document, in order, continuation lines joined and comments cut."""
    found = []
    for kind, text in BLOCK.findall(path.read_text()):
        lines = re.sub(r"\\\n\s*", "", text).splitlines()
        for line in lines:
            if kind == "console" and not line.startswith("$ "):
                continue
            command = re.sub(r"\s+# .*$", "", line.removeprefix("$ ")).strip()
            if command:
                found.append(command)
    return found


def test_every_named_script_and_scenario_exists() -> None:
    for path in DOCUMENTS:
        for command in commands(path):
            script = re.match(r"(scripts/\w+)", command)
            assert script is None or os.access(ROOT / script[1], os.X_OK), command
            scenario = re.search(r"--scenario ([\w-]+)", command)
            assert scenario is None or scenario[1] in SCENARIOS, command


def test_every_scenario_is_in_a_document() -> None:
    text = "".join(path.read_text() for path in DOCUMENTS)
    assert all(f"--scenario {name}" in text for name in SCENARIOS)


def test_nothing_is_run_that_was_not_thought_of() -> None:
    known = (ELSEWHERE, OTHER_HOST, MACHINE, HERE)
    found = [command for path in DOCUMENTS for command in commands(path)]
    assert [command for command in found if not any(each.match(command) for each in known)] == []
    assert not HERE.match("useradd --system llmgw-engine")


@pytest.fixture
def place(fleet: RunningFleet, tmp_path: Path) -> Path:
    """A folder in which the documents' relative paths mean something, with `llmgw` on PATH."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "llmgw"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llmgw "$@"\n')
    program.chmod(0o755)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(tmp_path / "bin")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "llmgw-state").symlink_to(fleet.demo.state)
    (tmp_path / "server.yaml").write_text((ROOT / "examples" / "server.yaml").read_text())
    (tmp_path / "agent.yaml").write_text((ROOT / "examples" / "agent.yaml").read_text())
    return tmp_path


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_commands_of_a_document_work(fleet: RunningFleet, place: Path, path: Path) -> None:
    for count in ("3", "2"):
        fleet.ctl("scale", "demo/small", count, "--yes")  # so that there is a revision 3
    fleet.wait_ready()
    script = ["set -eE", """trap 'echo "this failed: $BASH_COMMAND" >&2' ERR"""]
    for command in commands(path):
        words = (ELSEWHERE, MACHINE, UPGRADE)
        if any(one.match(command) for one in words) or not HERE.match(command):
            continue
        if "sim power-off" in command:
            command += " --help"  # test_demo.py cuts the power of a demo of its own
        if "ctl catalog rollback" in command:
            command += " --yes"  # nobody is at the terminal
        if command.startswith("llmgw doctor"):
            command += "; [ $? -le 1 ]"  # warnings are not errors
            command = command.replace("llmgw doctor", "set +e; llmgw doctor") + "; set -e"
        command = command.replace("http://127.0.0.1:8080", fleet.demo.api).replace(
            "http://127.0.0.1:8081", fleet.demo.admin
        )
        command = command.replace("/etc/llmgw/agent.yaml", str(fleet.demo.folder / "node01" / "agent.yaml"))
        script.append(command.replace("chat-small", "demo/small"))
    env = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "NO_COLOR": "1"}
    env["LLMGW_STATE"] = str(fleet.demo.state)  # for `llmgw sim`, whatever other demo runs here
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    # The end is what failed; all of it would hide that in a log that is cut.
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    assert "Traceback" not in done.stderr
