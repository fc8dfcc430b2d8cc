"""`scripts/lab`: machines that boot, lose their power and their network, and nothing that stays of them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.machines import needs
from tests.lab.machines.lab import leftovers
from tests.lab.machines.places import FLEET, LOCK
from tests.lab.real_fabric import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("needs_machines")]
COMMAND = [sys.executable, "-m", "tests.lab.machines"]
_FETCH = "python3 -c \"import urllib.request as u; u.urlopen('http://{address}:{port}/', timeout=3).read()\""


def lab(*words: str, code: int = 0) -> str:
    """What `scripts/lab …` says, on either output."""
    done = subprocess.run(
        [*COMMAND, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def status() -> dict[str, Any]:
    machines: dict[str, Any] = {one["name"]: one for one in json.loads(lab("status", "-o", "json"))["machines"]}
    return machines


@pytest.fixture(scope="module")
def running(needs_machines: None) -> Iterator[None]:
    lab("up")
    try:
        yield
    finally:
        lab("down")
        assert leftovers() == []


def test_what_a_killed_up_leaves_is_named_and_down_takes_it_away() -> None:
    process = subprocess.Popen([*COMMAND, "up"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_for(lambda: Path("/run/netns", FLEET["node01"].namespace).exists(), "a machine has its namespace")
    process.kill()
    process.communicate(timeout=20)
    assert leftovers()
    assert "scripts/lab down takes it away" in lab("up", code=1)
    assert "The lab is down" in lab("down")
    assert leftovers() == []
    assert "There was no lab" in lab("down")


def test_a_network_that_this_machine_uses_is_not_taken_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subprocess.run(["ip", "link", "add", "lab-taken", "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "addr", "add", "10.98.7.1/28", "dev", "lab-taken"], check=True)
        subprocess.run(["ip", "link", "set", "lab-taken", "up"], check=True)
        monkeypatch.setenv("LLMGW_LAB_NETWORK", "10.98.7")
        said = lab("up", code=1)
    finally:
        subprocess.run(["ip", "link", "del", "lab-taken"], check=True)
    assert "10.98.7.0/24 is in use on this machine (10.98.7.0/28 on lab-taken)" in said
    assert "LLMGW_LAB_NETWORK" in said
    assert leftovers() == []


def test_without_a_lab_commands_say_how_to_get_one() -> None:
    assert "No lab is up" in lab("status", code=1)
    assert "scripts/lab up" in lab("kill", "node01", code=1)
    assert "scripts/lab status" in lab("ssh", "node01", "true", code=1)


def test_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "PATH", "/nowhere")
    said = needs.missing()
    assert said is not None
    assert "systemd-nspawn, mmdebstrap" in said
    assert "apt-get install --no-install-recommends systemd-container mmdebstrap" in said
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "sudo" in (needs.missing() or "")


@pytest.mark.usefixtures("running")
def test_five_machines_run_systemd_and_there_is_only_one_lab() -> None:
    for name in FLEET:
        wait_for(
            lambda name=name: lab("ssh", name, "systemctl", "is-system-running", "--wait") == "running\n",  # type: ignore[misc]
            f"all units of {name} have started",
        )
        assert lab("ssh", name, "hostname") == f"{name}\n"
    assert "A lab is up" in lab("up", code=1)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "Another scripts/lab is at work" in lab("cut", "node01", code=1)
    assert "There is no 'node09'" in lab("kill", "node09", code=1)


@pytest.mark.usefixtures("running")
def test_each_fabric_has_its_master_and_standby_which_its_nodes_see() -> None:
    managers = json.loads(lab("status", "-o", "json"))["managers"]
    assert [one["state"] for one in managers] == ["master", "standby"] * 2
    seen = {node: lab("ssh", node, "saquery", "SMIR") for node in ("node01", "node03")}
    for said in seen.values():
        assert said.count("Priority") == 2
    assert seen["node01"].splitlines()[4] != seen["node03"].splitlines()[4]
    assert "node02 mlx5_1" in lab("ssh", "node01", "ibnetdiscover", "-C", "mlx5_1")


@pytest.mark.usefixtures("running")
def test_a_machine_whose_power_is_cut_comes_back_with_its_disk_and_another_boot() -> None:
    boot_id = "cat /proc/sys/kernel/random/boot_id"
    before = lab("ssh", "node02", boot_id, "&&", "echo", "kept", ">", "/root/file")
    lab("kill", "node02")
    assert (status()["node02"]["power"], status()["node02"]["network"]) == ("off", "none")
    assert "no machine 'node02' has power" in lab("ssh", "node02", "true", code=1)
    assert "scripts/lab boot node02" in lab("heal", "node02", code=1)
    lab("boot", "node02")
    assert status()["node02"] == {**status()["node02"], "power": "on", "network": "up"}
    after = lab("ssh", "node02", boot_id)
    assert after != before
    assert lab("ssh", "node02", "cat", "/root/file") == "kept\n"
    assert "has power" in lab("boot", "node02", code=1)


@pytest.mark.usefixtures("running")
def test_what_agent_and_server_say_can_be_lost_alone() -> None:
    for name, port in (("server", 8443), ("node01", 21000)):
        lab("ssh", name, f"systemd-run --quiet -u web python3 -m http.server {port}")
    to_server = _FETCH.format(address=FLEET["server"].address, port=8443)
    to_engine = _FETCH.format(address=FLEET["node01"].address, port=21000)
    for there in (("node01", to_server), ("server", to_engine)):
        _wait_served(*there)
    lab("cut", "node01", "--from", "server")
    assert status()["node01"]["network"] == "cut from server"
    began = time.monotonic()
    assert _fails("node01", to_server)
    assert time.monotonic() - began > 2.9, "it is lost, not refused"
    _wait_served("server", to_engine)
    _wait_served("node02", to_server)
    assert "scripts/lab heal node01" in lab("cut", "node01", code=1)
    lab("heal", "node01")
    _wait_served("node01", to_server)


@pytest.mark.usefixtures("running")
def test_a_cable_can_be_pulled_and_put_back() -> None:
    lab("ssh", "node04", "true")
    lab("cut", "node04")
    assert status()["node04"]["network"] == "cut"
    said = lab("ssh", "server", f"ssh -o ConnectTimeout=1 {FLEET['node04'].address} true", code=255)
    assert "timed out" in said
    lab("heal", "node04")
    wait_for(lambda: lab("ssh", "server", "ssh", "node04", "hostname") == "node04\n", "it is back")


@pytest.mark.usefixtures("running")
def test_a_killed_manager_is_followed_by_its_standby() -> None:
    def state(name: str) -> str:
        managers = json.loads(lab("status", "-o", "json"))["managers"]
        [found] = [one["state"] for one in managers if one["name"] == name]
        return str(found)

    lab("kill", "ib-b-sm1")
    assert state("ib-b-sm1") == "stopped"
    wait_for(lambda: state("ib-b-sm2") == "master", "the standby is master")
    lab("boot", "ib-b-sm1")
    wait_for(lambda: [state("ib-b-sm1"), state("ib-b-sm2")] == ["master", "standby"], "each is what it was")


def _wait_served(machine: str, fetch: str) -> None:
    wait_for(lambda: not _fails(machine, fetch), f"the page is served to {machine}")


def _fails(machine: str, command: str) -> bool:
    done = subprocess.run(
        [*COMMAND, "ssh", machine, command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode != 0
