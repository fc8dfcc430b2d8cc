"""`llmgw onboard-node` against a real server, with a real agent on a machine below a folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.pki.authority import Authority
from llmgw.pki.handout import write_files
from tests.endtoend.conftest import llmgw, until
from tests.endtoend.servers import Server, server
from tests.onboarding.machine import Machine, changed_by, report_of
from tests.ports import free_port

Done = subprocess.CompletedProcess[str]


class Fleet:
    """A server under an authority, and machines."""

    def __init__(self, folder: Path, running: Server, port: int, pki: Path) -> None:
        self.folder = folder
        self.server = running
        self.agents = f"https://127.0.0.1:{port}"
        self.pki = pki
        self.machines: list[Machine] = []

    def machine(self, node: str, address: str = "127.0.0.1") -> Machine:
        """A bare machine whose unit really runs an agent."""
        folder = self.folder / f"machine{len(self.machines)}"
        folder.mkdir()
        made = Machine(folder, node, address)
        (made.folder / "runs-agents").touch()
        self.machines.append(made)
        return made

    def onboard(self, machine: Machine, *options: str, pki: Path | None = None, wait_s: int = 60) -> Done:
        return machine.onboard(
            pki or self.pki,
            *("--server", self.agents, "--wait", str(wait_s), *options),
            real=True,
            LLMGW_STATE=str(self.server.state),
        )

    def node(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.get(f"nodes/{node}")
        return found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("onboard")
    pki = folder / "pki"
    authority = Authority.create(pki, now=time.time())
    files = write_files(authority.issue_server(["127.0.0.1"], time.time()), folder / "server-tls")
    port = free_port()
    tls = {**files, "revocations": str(authority.revocations_path)}
    with server(folder / "server", agents={"listen": f"127.0.0.1:{port}", "tls": tls}) as running:
        fleet = Fleet(folder, running, port, pki)
        yield fleet
        for machine in fleet.machines:
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((machine.folder / "agent.pid").read_text()), signal.SIGKILL)


def pid(machine: Machine) -> int:
    return int((machine.folder / "agent.pid").read_text())


def test_a_bare_machine_is_a_node_after_one_command_and_a_second_run_changes_nothing(fleet: Fleet) -> None:
    machine = fleet.machine("node01")
    done = fleet.onboard(machine)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "node01 is there: llmgw" in done.stdout
    assert "can run only the simulated engine (sim)" in done.stderr
    view = fleet.node("node01")
    assert (view["state"], view["address"]) == ("ready", "127.0.0.1")
    first = pid(machine)

    again = fleet.onboard(machine, "-o", "json")
    assert again.returncode == 0, again.stderr
    assert report_of(again)["registered"] is True
    assert changed_by(again) == []
    assert pid(machine) == first

    began = time.monotonic()
    newer = fleet.onboard(machine, "--binary", str(machine.release("two", real=True)))
    assert newer.returncode == 0, newer.stderr
    assert "agent: restarted; its engines go on" in newer.stderr
    assert pid(machine) != first
    # What it waited for was the new agent's registration, not that of the one before.
    assert fleet.node("node01")["registered_s"] < time.monotonic() - began
    assert machine.left_behind() == []


def test_a_node_id_that_is_heard_elsewhere_is_refused_before_anything_is_changed(fleet: Fleet) -> None:
    assert fleet.onboard(fleet.machine("node02")).returncode == 0
    other = fleet.machine("node02", address="127.0.0.42")
    done = fleet.onboard(other)
    assert done.returncode == 1
    assert "node02 is onboarded elsewhere already: the control plane hears it at 127.0.0.1" in done.stderr
    assert not other.etc("agent.pem").exists()


def test_a_node_that_the_server_does_not_let_in_is_told_with_its_agents_log_and_doctors_findings(
    fleet: Fleet,
) -> None:
    stranger = fleet.folder / "other-pki"
    Authority.create(stranger, now=time.time())
    machine = fleet.machine("node03")
    assert fleet.onboard(machine, pki=stranger, wait_s=1).returncode == 1
    until(lambda: any("does not take the registration" in line for line in machine.log("agent")), 30)
    done = fleet.onboard(machine, pki=stranger, wait_s=1)
    assert done.returncode == 1
    assert "node03 is not there after 1 s" in done.stderr
    assert "knows no node node03, so no agent of that name has reached it" in done.stderr
    assert "the agent's last words:" in done.stdout
    assert "the server does not take the registration" in done.stdout
    assert "llmgw doctor on node03:" in done.stdout
    assert "Seen from the node: The certificate of 127.0.0.1" in done.stderr


def test_a_revoked_node_that_is_onboarded_again_gets_another_certificate_and_is_let_in(fleet: Fleet) -> None:
    machine = fleet.machine("node04")
    assert fleet.onboard(machine).returncode == 0
    assert llmgw("ctl", "cert", "revoke", "node04", "--pki", str(fleet.pki)).returncode == 0
    done = fleet.onboard(machine)
    assert done.returncode == 0, done.stderr
    assert "the node's was revoked" in done.stderr
    until(lambda: fleet.node("node04")["last_heard_s"] < 2, 10)


def test_a_removed_node_that_is_onboarded_again_gets_another_certificate_though_nobody_revoked_it(
    fleet: Fleet,
) -> None:
    machine = fleet.machine("node05")
    assert fleet.onboard(machine).returncode == 0
    nowhere = str(fleet.folder / "nowhere")
    removed = llmgw(
        *("ctl", "node", "remove", "node05", "--yes", "--pki", nowhere),
        env={"LLMGW_STATE": str(fleet.server.state)},
    )
    assert "node05 is removed" in removed.stdout, removed.stderr
    until(lambda: any("node05 was removed on" in line for line in machine.log("agent")), 30)
    done = fleet.onboard(machine)
    assert done.returncode == 0, done.stderr
    assert "the node was removed on " in done.stderr
    assert fleet.node("node05")["state"] == "ready"
    assert changed_by(fleet.onboard(machine, "-o", "json")) == []


def test_without_a_control_plane_nothing_is_changed(fleet: Fleet, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    done = machine.onboard(
        fleet.pki, "--server", fleet.agents, "--wait", "5", LLMGW_CTL_SERVER="http://127.0.0.1:9"
    )
    assert done.returncode == 1
    assert "The control plane could not be asked about node01" in done.stderr
    assert "--wait 0" in done.stderr
    assert not machine.log("ssh")
