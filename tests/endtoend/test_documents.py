"""Every command in the README and in docs/ is run, or named here with the test that runs it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.onboarding.provision.wanted import DEFAULT_IMAGE
from llmgw.sim.scenarios import SCENARIOS
from tests.endtoend.conftest import RunningFleet
from tests.onboarding.proxmox.host import KEY, OTHER_KEY, ProxmoxHost

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Run by other tests: the demo and its scenarios (test_demo.py, test_coming_back.py, test_demo_gguf.py), the
# simulator (tests/simulation), the fuzzing (test_fuzz.py), the package (test_installed.py), the benches,
# releases (tests/release, tests/ctl/test_release.py), the suite itself.
ELSEWHERE = re.compile(
    r"scripts/(demo|test|check|simulate|fuzz|bench|build|sign)( |$)|pipx install llmgw$|llmgw demo --scenario |"
    r"sh install.sh |sha256sum |llmgw ctl release verify "
)
# They name another host.
OTHER_HOST = re.compile(r"export LLMGW_CTL_")
# They change the machine, or ask its systemd: nothing for a test, least of all one that runs as root.
MACHINE = re.compile(r"(useradd|systemctl|journalctl|install) ")
# Ours that change machines, or the fleet for good: only their options are looked up. Other tests run them.
HELP_ONLY = re.compile(
    r"(?:\S*bin/)?llmgw (server install|provision-node|onboard-node|ctl node remove|ctl upgrade)(?: |$)"
)
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


def only_looked_up(path: Path, command: str) -> bool:
    """True for a command that no test of documents runs; provisioning.md's run on the tests' own Proxmox host."""
    return HELP_ONLY.match(command) is not None and path.name != "provisioning.md"


def test_commands_that_change_machines_have_the_options_that_documents_give_them() -> None:
    found = [command for path in DOCUMENTS for command in commands(path) if HELP_ONLY.match(command)]
    assert len({HELP_ONLY.match(command)[1] for command in found}) >= 4  # type: ignore[index]
    for command in found:
        matched = HELP_ONLY.match(command)
        assert matched is not None
        done = subprocess.run(
            [sys.executable, "-m", "llmgw", *matched[1].split(), "--help"],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        given = re.findall(r"(?<= )--[\w-]+", command)
        assert [option for option in given if option not in done.stdout] == [], command


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
    _proxmox(tmp_path / "proxmox")
    return tmp_path


def _proxmox(folder: Path) -> None:
    """A Proxmox host for `llmgw provision-node`, with Debian's image kept: nothing is fetched here."""
    host = ProxmoxHost(folder)
    image = host.image.read_bytes()
    digest = hashlib.sha512(image).hexdigest()
    kept = f"var/lib/vz/llmgw-images/debian-12-generic-amd64-{digest[:12]}.qcow2"
    host.file(f"{kept}.sha512", f"# {DEFAULT_IMAGE}\n{digest}  {Path(kept).name}\n")
    (host.root / kept).write_bytes(image)
    host.file("root/.ssh/authorized_keys", KEY)
    host.file("root/alice.pub", OTHER_KEY)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_commands_of_a_document_work(fleet: RunningFleet, place: Path, path: Path) -> None:
    for count in ("3", "2"):
        fleet.ctl("scale", "demo/small", count, "--yes")  # so that there is a revision 3
    fleet.wait_ready()
    script = ["set -eE", """trap 'echo "this failed: $BASH_COMMAND" >&2' ERR"""]
    for command in commands(path):
        if ELSEWHERE.match(command) or only_looked_up(path, command) or not HERE.match(command):
            continue
        if "sim power-off" in command:
            command += " --help"  # test_demo.py cuts the power of a demo of its own
        if "ctl catalog rollback" in command:
            command += " --yes"  # nobody is at the terminal
        if "server restore" in command:  # beside the server's own state, which it uses
            command = re.sub(r" --(authority|state \S+)", "", command) + " --state restored --yes"
        if command.startswith("llmgw doctor"):
            command += "; [ $? -le 1 ]"  # warnings are not errors
            command = command.replace("llmgw doctor", "set +e; llmgw doctor") + "; set -e"
        if command.startswith("llmgw provision-node"):
            # No VM starts here, no mirror is asked, and no address of this network.
            command = f"HTTPS_PROXY=http://127.0.0.1:9 {command.removesuffix('--dry-run')} --ssh-port 9 --dry-run"
            command = command.replace("10.0.0.15", "127.0.55.15").replace(
                "--gateway 10.0.0.1", "--gateway 127.0.55.1"
            )
            command = command.replace("/root/alice.pub", f"{place}/proxmox/root/root/alice.pub")
        command = command.replace("http://127.0.0.1:8080", fleet.demo.api).replace(
            "http://127.0.0.1:8081", fleet.demo.admin
        )
        command = command.replace("/etc/llmgw/agent.yaml", str(fleet.demo.folder / "node01" / "agent.yaml"))
        script.append(command.replace("chat-small", "demo/small"))
    path = f"{place / 'bin'}:{place / 'proxmox' / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "NO_COLOR": "1"}
    env["LLMGW_PROVISION_ROOT"] = str(place / "proxmox" / "root")
    env["LLMGW_SERVER__STATE"] = str(fleet.demo.state)  # for `llmgw server backup`
    env["LLMGW_STATE"] = str(fleet.demo.state)  # for `llmgw sim`, whatever other demo runs here
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    # The end is what failed; all of it would hide that in a log that is cut.
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    assert "Traceback" not in done.stderr
