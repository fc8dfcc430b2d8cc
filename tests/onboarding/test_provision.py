"""`llmgw provision-node` through the front door: what it makes, and what is left when anything fails."""

from __future__ import annotations

import io
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest

from llmgw.onboarding.provision.carry_out import Worker
from llmgw.onboarding.provision.errors import Ended
from llmgw.onboarding.provision.plan import Command
from llmgw.onboarding.provision.progress import Progress
from llmgw.onboarding.provision.proxmox import Proxmox
from llmgw.onboarding.provision.signals import endings_raised
from tests.onboarding.proxmox.host import KEY, OTHER_KEY, ProxmoxHost
from tests.onboarding.proxmox.programs import GIB
from tests.patience import PATIENCE

STEPS = ("create", "set", "resize", "start")


def wait_until(true: Callable[[], object], timeout_s: float = 20) -> None:
    deadline_s = time.monotonic() + timeout_s * PATIENCE
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_vm_is_made_started_and_answers(host: ProxmoxHost) -> None:
    done = host.run(
        "--pci", "41:00", "--pci", "0000:61:00.0", "--cores", "8", "--memory", "64G", "--disk", "100G"
    )
    assert done.returncode == 0, done.stderr
    assert host.changes() == list(STEPS)
    made = host.config()
    assert made["name"] == "node05"
    assert made["ipconfig0"] == "ip=127.0.55.5/8,gw=127.0.0.1"
    assert (made["machine"], made["bios"], made["cpu"], made["scsihw"]) == (
        "q35",
        "ovmf",
        "host",
        "virtio-scsi-single",
    )
    assert (made["cores"], made["sockets"], made["memory"], made["balloon"]) == ("8", "1", "65536", "0")
    assert (made["hostpci0"], made["hostpci1"]) == ("0000:41:00,pcie=1", "0000:61:00.0,pcie=1")
    assert made["efidisk0"].endswith("efitype=4m,pre-enrolled-keys=0")
    assert made["boot"] == "order=scsi0"
    assert made["onboot"] == "1"
    assert (host.folder / "volumes/local-lvm/vm-105-disk-1").read_text() == str(100 * GIB)
    assert unquote(made["sshkeys"]).split()[:2] == KEY.split()[:2]
    assert (host.folder / "running/105").exists()
    snippet = host.root / "var/lib/vz" / made["cicustom"].removeprefix("vendor=local:")
    assert snippet.read_text().startswith("#cloud-config\n")
    assert "python3-venv" in snippet.read_text()
    assert [path.name for path in (host.root / "run/llmgw-provision").iterdir()] == ["lock"]


def test_the_next_command_is_told(host: ProxmoxHost) -> None:
    done = host.run("--server", "https://gateway.internal:8443", "--ssh-user", "debian")
    assert done.returncode == 0, done.stderr
    assert (
        "  llmgw onboard-node --node node05 --addr 127.0.55.5 --server https://gateway.internal:8443 "
        "--ssh-user debian\n" in done.stdout
    )
    assert host.config()["ciuser"] == "debian"


def test_an_import_tells_how_far_it_is(host: ProxmoxHost) -> None:
    done = host.run()
    assert "importing the image: 2.0 GiB of 2.0 GiB, 100 %" in done.stderr
    assert "importing" not in done.stdout


def test_json_has_the_commands_that_were_run(host: ProxmoxHost) -> None:
    done = host.run("-o", "json")
    told = json.loads(done.stdout)
    assert (told["vmid"], told["name"], told["address"], told["dry_run"]) == (105, "node05", "127.0.55.5", False)
    called = [call[1] for call in host.calls("qm") if call[1] in STEPS]
    assert [command.split()[1] for command in told["commands"]] == called


def test_an_ipv6_address_is_given_as_such(host: ProxmoxHost) -> None:
    done = host.run("--gateway", "fd00:55::1", "--dry-run", ip="fd00:55::5/64")
    assert done.returncode == 0, done.stderr
    assert "--ipconfig0 ip6=fd00:55::5/64,gw6=fd00:55::1" in done.stdout


def test_hugepages_take_a_socket_for_each_numa_node(host: ProxmoxHost) -> None:
    done = host.run("--hugepages", "1024", "--sockets", "2", "--cores", "8", "--memory", "160G")
    assert done.returncode == 0, done.stderr
    made = host.config()
    assert (made["hugepages"], made["sockets"], made["cores"], made["numa"]) == ("1024", "2", "4", "1")


def test_without_packages_no_snippet_and_no_upgrade_is_asked_for(host: ProxmoxHost) -> None:
    host.storages({"local-lvm": {"path": "/dev/pve", "content": "images", "avail": 500 * GIB}})
    done = host.run("--no-packages")
    assert done.returncode == 0, done.stderr
    assert "cicustom" not in host.config()
    assert host.config()["ciupgrade"] == "0"


def test_a_dry_run_prints_the_commands_that_a_run_runs_and_changes_nothing(host: ProxmoxHost) -> None:
    before = host.state()
    dry = host.run("--dry-run", "--pci", "61:00.0")
    assert dry.returncode == 0, dry.stderr
    assert host.state() == before
    assert not host.changes()
    assert not (host.root / "var/lib/vz").exists()
    printed = [line for line in dry.stdout.splitlines() if line.startswith("qm ")]
    told = json.loads(host.run("-o", "json", "--pci", "61:00.0").stdout)["commands"]

    def without_token(commands: list[str]) -> list[list[str]]:
        return [[word for word in each.split() if "llmgw-" not in word] for each in commands]

    assert without_token(printed) == without_token(told)


def test_the_script_of_a_dry_run_makes_the_same_vm(host: ProxmoxHost) -> None:
    script = host.run("--dry-run").stdout
    done = subprocess.run(
        ["sh", "-e"], input=script, env=host.environment(), capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    by_hand = host.config()
    assert by_hand["ipconfig0"] == "ip=127.0.55.5/8,gw=127.0.0.1"
    assert unquote(by_hand["sshkeys"]).startswith("ssh-ed25519 ")
    assert (host.folder / "running/105").exists()


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_leaves_the_host_as_it_was(host: ProxmoxHost, step: str, how: str) -> None:
    host.guest(100, "name: other\nscsi0: local-lvm:vm-100-disk-0,size=8G\n")
    (host.folder / "volumes/local-lvm/vm-100-disk-0").write_text("8")
    before = host.state()
    host.fails(**{step: how})
    done = host.run("--pci", "61:00.0")
    assert done.returncode == 1
    assert f"`qm {step} 105` failed while" in done.stderr
    assert ("out of data space" if how == "after" else "got timeout") in done.stderr
    assert "Traceback" not in done.stderr
    assert host.state() == before
    # Run again without the fault, it comes to its end.
    host.fails()
    assert host.run("--pci", "61:00.0").returncode == 0


def test_a_disk_that_was_not_grown_although_the_command_went_well_is_a_failure(host: ProxmoxHost) -> None:
    before = host.state()
    host.fails(resize="untold")
    done = host.run()
    assert done.returncode == 1
    assert "The disk was not grown to 64.0 GiB (resize failed: lvextend error: Insufficient free" in done.stderr
    assert not host.calls("qm", "start")
    assert host.state() == before


def test_a_vm_whose_ssh_never_answers_is_removed(host: ProxmoxHost) -> None:
    host.ssh_port(0)
    before = host.state()
    done = host.run("--timeout", "1")
    assert done.returncode == 1
    assert f"No ssh server answers at 127.0.55.5:{host.port} 1 s after the start" in done.stderr
    assert "--keep" in done.stderr
    assert host.state() == before


def test_a_vm_whose_ssh_never_answers_is_left_when_asked_for(host: ProxmoxHost) -> None:
    host.ssh_port(0)
    done = host.run("--timeout", "1", "--keep")
    assert done.returncode == 1
    assert (host.folder / "running/105").exists()
    assert "destroy" not in host.changes()


def test_something_that_is_no_ssh_server_is_not_taken_for_one(host: ProxmoxHost) -> None:
    host.ssh_port(0)
    running = host.start("--timeout", "3")
    wait_until(lambda: host.calls("qm", "start"))
    with socket.create_server(("127.0.55.5", host.port)) as listener:
        listener.settimeout(10)
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()
        _, stderr = running.communicate(timeout=90)
    assert running.returncode == 1
    assert "No ssh server answers" in stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_while_it_imports_leaves_nothing(host: ProxmoxHost, number: signal.Signals) -> None:
    before = host.state()
    host.fails(set="hang")
    running = host.start()
    wait_until((host.folder / "hanging").exists)
    assert (host.configs / "105.conf").exists()
    running.send_signal(number)
    _, stderr = running.communicate(timeout=90)
    assert running.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert "removing VM 105" in stderr
    assert "Traceback" not in stderr
    assert host.state() == before


def test_a_run_that_is_ended_while_the_vm_is_made_waits_for_that_and_removes_it(host: ProxmoxHost) -> None:
    before = host.state()
    host.fails(create="slow")
    running = host.start()
    wait_until((host.folder / "hanging").exists)
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGINT)  # an impatient second time
    assert not host.calls("qm", "destroy")
    (host.folder / "go").write_text("")
    running.communicate(timeout=90)
    assert running.returncode == 130
    assert host.calls("qm", "destroy")
    assert host.state() == before


def test_a_run_that_is_ended_while_it_waits_for_ssh_leaves_nothing(host: ProxmoxHost) -> None:
    host.ssh_port(0)
    before = host.state()
    running = host.start()
    wait_until(lambda: (host.folder / "running/105").exists())
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=90)
    assert host.calls("qm", "stop")
    assert host.state() == before


def test_a_vmid_that_is_taken_between_check_and_making_is_not_touched(host: ProxmoxHost) -> None:
    host.fails(create="taken")
    done = host.run()
    assert done.returncode == 1
    assert "VM 105 already exists on node 'pve1'" in done.stderr
    assert (host.configs / "105.conf").read_text() == "name: somebody\n"
    assert not host.calls("qm", "destroy")
    assert not host.calls("qm", "stop")


def test_a_vm_that_cannot_be_removed_again_is_told_with_the_command(host: ProxmoxHost) -> None:
    host.fails(resize="before", destroy="before")
    done = host.run()
    assert done.returncode == 1
    assert "`qm resize 105` failed" in done.stderr
    assert "VM 105 could not be removed and is left over (destroy failed: got timeout)" in done.stderr
    assert "qm stop 105; qm destroy 105 --skiplock 1 --destroy-unreferenced-disks 1" in done.stderr


def test_a_removal_that_does_not_go_at_once_is_tried_again(host: ProxmoxHost) -> None:
    before = host.state()
    host.fails(resize="before", destroy="once")
    assert "left over" not in host.run().stderr
    assert host.state() == before


def test_a_copy_that_ends_slowly_is_waited_for_before_its_disk_is_removed(host: ProxmoxHost) -> None:
    before = host.state()
    host.fails(set="copying")
    running = host.start()
    wait_until((host.folder / "hanging").exists)
    running.send_signal(signal.SIGTERM)
    _, stderr = running.communicate(timeout=90)
    assert "left over" not in stderr
    assert not (host.folder / "copying").exists()
    assert len(host.calls("qm", "destroy")) == 1
    assert host.state() == before


def test_removing_takes_nothing_that_others_have_of_that_number(host: ProxmoxHost) -> None:
    """A backup job that names the VMID already, and a disk on a storage that is away until then."""
    host.storages(
        {
            "local": {"path": "/var/lib/vz", "content": "snippets"},
            "local-lvm": {"path": "/dev/pve", "content": "images", "avail": 500 * GIB},
            "nas": {"path": "/mnt/nas", "content": "images", "active": 0},
        }
    )
    (host.folder / "volumes/nas").mkdir()
    (host.folder / "volumes/nas/vm-105-disk-0").write_text("somebody's")
    host.file("etc/pve/jobs.cfg", "vzdump: backup-1\n\tschedule 21:00\n\tvmid 100,105\n")
    before = host.state()
    host.fails(resize="before")
    assert host.run().returncode == 1
    assert host.calls("qm", "destroy")
    assert host.state() == before


def test_a_disk_that_an_ended_import_left_is_removed_too(host: ProxmoxHost) -> None:
    before = host.state()
    stray = host.folder / "volumes/local-lvm/vm-105-disk-7"
    host.fails(set="hang")
    running = host.start()
    wait_until((host.folder / "hanging").exists)
    stray.write_text("1")
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=90)
    assert host.state() == before


def test_a_making_that_was_killed_is_told_and_not_removed(host: ProxmoxHost) -> None:
    host.fails(create="killed")
    done = host.run()
    assert done.returncode == 1
    assert "VM 105 has a configuration with nothing but a lock" in done.stderr
    assert "if nobody else is making a VM 105 now, qm destroy 105 --skiplock 1 removes it" in done.stderr
    assert not host.calls("qm", "destroy")


def test_nobody_is_told_to_destroy_a_vm_that_could_not_be_looked_at(host: ProxmoxHost) -> None:
    host.fails(create="taken", config="before")
    done = host.run()
    assert done.returncode == 1
    assert "Whether VM 105 is left over is not known" in done.stderr
    assert "else it is somebody else's" in done.stderr
    assert (host.configs / "105.conf").read_text() == "name: somebody\n"


def test_a_signal_while_a_command_begins_leaves_no_command_behind(
    host: ProxmoxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[subprocess.Popen[str]] = []
    begin = subprocess.Popen

    def begin_and_be_ended(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        begun.append(begin(*arguments, **options))
        signal.raise_signal(signal.SIGTERM)
        return begun[0]

    environ = host.environment()
    worker = Worker(
        105, "local-lvm", "llmgw-x", Proxmox(environ), environ, Progress(io.StringIO(), time.monotonic)
    )
    command = Command("trying", (sys.executable, "-c", "import time; time.sleep(50)"), 60)
    with endings_raised():
        monkeypatch.setattr("llmgw.onboarding.provision.carry_out.subprocess.Popen", begin_and_be_ended)
        with pytest.raises(Ended):
            worker.run(command)
    try:
        assert begun[0].poll() is not None
    finally:
        begun[0].kill()


def test_two_runs_for_one_device_do_not_both_get_it(host: ProxmoxHost) -> None:
    host.fails(create="slow")
    first = host.start("--pci", "41:00")
    wait_until((host.folder / "hanging").exists)
    host.fails()
    second = subprocess.Popen(
        host.command("--pci", "41:00", "--vmid", "106", "--name", "node06", ip="127.0.55.6/8"),
        cwd=host.folder,
        env=host.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    (host.folder / "go").write_text("")
    assert first.wait(timeout=90) == 0
    _, stderr = second.communicate(timeout=90)
    assert second.returncode == 1
    assert "0000:41:00.0 belongs to VM 105 (node05) on pve1 already" in stderr
    assert not (host.configs / "106.conf").exists()


def test_an_address_that_is_taken_while_the_image_is_verified_is_seen_again(host: ProxmoxHost) -> None:
    """The second look: the first run's VM is there by the time the second gets its turn."""
    lock = host.root / "run/llmgw-provision/lock"
    lock.parent.mkdir(parents=True)
    holder = subprocess.Popen(["flock", str(lock), "cat"], stdin=subprocess.PIPE)
    wait_until(lock.exists)
    running = host.start()
    wait_until(lambda: list((host.root / "run").glob("llmgw-provision/*.pub")))
    host.guest(300, "name: faster\nipconfig0: ip=127.0.55.5/8\n", node="pve2")
    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait(timeout=40)
    _, stderr = running.communicate(timeout=90)
    assert running.returncode == 1
    assert "the address belongs to VM 300 (faster) on pve2" in stderr
    assert not host.changes()


def test_a_disk_of_that_number_that_came_meanwhile_is_seen_and_not_touched(host: ProxmoxHost) -> None:
    lock = host.root / "run/llmgw-provision/lock"
    lock.parent.mkdir(parents=True)
    holder = subprocess.Popen(["flock", str(lock), "cat"], stdin=subprocess.PIPE)
    wait_until(lock.exists)
    running = host.start()
    wait_until(lambda: list((host.root / "run").glob("llmgw-provision/*.pub")))
    (host.folder / "volumes/local-lvm/vm-105-disk-0").write_text("somebody's")
    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait(timeout=40)
    _, stderr = running.communicate(timeout=90)
    assert "disks of that number are left over" in stderr
    assert (host.folder / "volumes/local-lvm/vm-105-disk-0").read_text() == "somebody's"
    assert not host.changes()


def test_keys_are_in_no_command_line_and_gone_from_the_disk(host: ProxmoxHost) -> None:
    assert host.run().returncode == 0
    assert KEY.split()[1] not in (host.folder / "calls").read_text()
    assert not list(host.root.glob("run/llmgw-provision/*.pub"))


def test_more_keys_are_let_in_and_restricted_ones_are_not(host: ProxmoxHost) -> None:
    (host.folder / "alice.pub").write_text(OTHER_KEY)
    restricted = f'command="/usr/bin/rrsync /backup",restrict {KEY.replace("GKJl", "GKJm")}\n'
    with (host.home / ".ssh/authorized_keys").open("a") as file:
        file.write(restricted)
    done = host.run("--ssh-key", str(host.folder / "alice.pub"))
    assert done.returncode == 0, done.stderr
    lines = unquote(host.config()["sshkeys"]).splitlines()
    assert [line.split()[1] for line in lines] == [KEY.split()[1], OTHER_KEY.split()[1]]
    assert "authorized_keys line 3 has options and was left out" in done.stderr


def test_a_key_line_that_was_cut_off_is_left_out_and_told(host: ProxmoxHost) -> None:
    """As sshd passes over it; Proxmox would refuse the whole VM."""
    with (host.home / ".ssh/authorized_keys").open("a") as file:
        file.write(f"{OTHER_KEY[:60]}\n")
    done = host.run()
    assert done.returncode == 0, done.stderr
    assert "authorized_keys line 3 is no whole key and was left out" in done.stderr
    assert len(unquote(host.config()["sshkeys"]).splitlines()) == 1


def test_a_file_for_cloud_init_that_was_damaged_is_written_anew(host: ProxmoxHost) -> None:
    assert host.run().returncode == 0
    (snippet,) = (host.root / "var/lib/vz/snippets").iterdir()
    right = snippet.read_bytes()
    snippet.write_bytes(b"\xff\xfe")
    done = host.run("--vmid", "106", "--name", "node06", ip="127.0.55.6/8")
    assert done.returncode == 0, done.stderr
    assert snippet.read_bytes() == right


def test_the_script_of_its_own_name_is_the_same_command(host: ProxmoxHost) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from llmgw.cli.provision import main; main()", "--help"],
        env=host.environment(),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "Usage: llmgw provision-node" in done.stdout
