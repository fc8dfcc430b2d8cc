"""The pure parts of provisioning: keys, other guests' files, the plan, progress; and the tests' own qm."""

from __future__ import annotations

import io
import ipaddress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llmgw.onboarding.provision.cloud_init import VENDOR_DATA
from llmgw.onboarding.provision.errors import ProvisionError
from llmgw.onboarding.provision.keys import gather, plain_key
from llmgw.onboarding.provision.plan import Chosen, make_plan, qm_size
from llmgw.onboarding.provision.progress import Progress, transferred
from llmgw.onboarding.provision.vm_configs import (
    addresses_of,
    devices_of,
    disk_bytes_told,
    overlap,
    read_config,
    read_mappings,
)
from llmgw.onboarding.provision.wanted import GIB, MIB, read_wanted
from tests.onboarding.proxmox import options
from tests.onboarding.proxmox.host import KEY, OTHER_KEY


def test_a_key_s_comment_cannot_break_out_of_cloud_inits_yaml() -> None:
    for comment in ("a: b", "- x", "#x", '"', "'", "\u202e", "a" * 10_000, "{x", "root@host"):
        line = plain_key(f"{' '.join(KEY.split()[:2])} {comment}")
        assert line is not None
        assert yaml.safe_load(f"ssh_authorized_keys:\n  - {line}\n") == {"ssh_authorized_keys": [line]}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# comment",
        f'from="10.0.0.1" {KEY}',
        f"cert-authority {KEY}",
        KEY.replace("ssh-ed25519", "ssh-rsa", 1),
        KEY.replace("AAAAC3", "AAA*C3"),
        "ssh-dss AAAAB3NzaC1kc3MAAA== old",
        KEY.split()[0] + " " + KEY.split()[1][:60],
        "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAQQDF too-short",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)
def test_what_is_no_plain_public_key_is_not_passed_on(line: str) -> None:
    assert plain_key(line) is None


def test_keys_of_this_host_and_of_the_user_here_are_taken_once_each(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n")
    for home, text in (("root", KEY), ("home/alice", f"{OTHER_KEY}\n{KEY}")):
        (tmp_path / home / ".ssh").mkdir(parents=True)
        (tmp_path / home / ".ssh/authorized_keys").write_text(text)
    (tmp_path / "root/.ssh/id_ed25519.pub").write_text(f"{' '.join(KEY.split()[:2])} another-comment\n")
    (tmp_path / "root/.ssh/id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n")
    keys = gather(tmp_path, "alice", tmp_path / "root", ())
    assert [line.split()[1] for line in keys.lines] == [KEY.split()[1], OTHER_KEY.split()[1]]
    assert "PRIVATE" not in keys.text
    assert len(gather(tmp_path, "bob", tmp_path / "root", ()).lines) == 1
    with pytest.raises(ProvisionError, match="No ssh key was found"):
        gather(tmp_path, "bob", tmp_path / "nowhere", ())


def test_addresses_of_guests_are_read_and_dhcp_is_none() -> None:
    text = "ipconfig0: ip=10.0.0.5/24,gw=10.0.0.1,ip6=fd00::5/64\nipconfig1: ip=dhcp\nnet0: virtio,bridge=x\n"
    assert addresses_of(read_config(100, "pve1", "qemu", text)) == {
        ipaddress.ip_address("10.0.0.5"),
        ipaddress.ip_address("fd00::5"),
    }


def test_devices_of_guests_are_read_in_every_spelling() -> None:
    text = (
        "hostpci0: 41:00,pcie=1\nhostpci1: host=0000:61:00.0;61:00.1\nhostpci2: pcie=1,mapping=nics\n"
        "[snap]\nhostpci3: 99:00\n"
    )
    mappings = read_mappings(
        "nics\n\tmap id=15b3:1021,node=pve1,path=0000:81:00.0;0000:81:00.1\n\tmap node=pve2,path=0000:82:00.0\n"
        "gpus\n\tmap node=pve1,path=0000:83:00.0\n",
        "pve1",
    )
    assert devices_of(read_config(100, "pve1", "qemu", text), mappings) == {
        "0000:41:00",
        "0000:61:00.0",
        "0000:61:00.1",
        "0000:81:00.0",
        "0000:81:00.1",
    }
    assert overlap("0000:41:00.1", "0000:41:00")
    assert not overlap("0000:41:00.1", "0000:41:00.0")


@given(st.text(max_size=300))
def test_no_file_of_a_guest_is_too_strange_to_read(text: str) -> None:
    config = read_config(100, "pve1", "qemu", text)
    addresses_of(config)
    devices_of(config, read_mappings(text, "pve1"))


@given(st.integers(1, 2**30))
def test_sizes_are_told_to_qm_exactly(mib: int) -> None:
    text = qm_size(mib * MIB)
    assert int(text[:-1]) * {"M": MIB, "G": GIB}[text[-1]] == mib * MIB


@pytest.mark.parametrize("ip", ["10.0.0.5/24", "fd00::5/64"])
@pytest.mark.parametrize("hugepages", [None, "1024", "2", "any"])
@pytest.mark.parametrize("packages", [True, False])
def test_every_command_is_made_of_documented_options(ip: str, hugepages: str | None, packages: bool) -> None:
    wanted = read_wanted(
        vmid=105,
        name="node05",
        ip=ip,
        pci=("41:00", "0000:61:00.1"),
        hugepages=hugepages,
        packages=packages,
        disk="65G",
    )
    chosen = Chosen(
        storage="local-lvm",
        gateway=next(iter(wanted.ip.network.hosts())),
        image=Path("/var/lib/vz/llmgw-images/x.qcow2"),
        keys_file=Path("/run/llmgw-provision/105.pub"),
        keys_text=KEY,
        snippet=("local:snippets/x.yaml", Path("/var/lib/vz/snippets/x.yaml")) if packages else None,
        mark="llmgw-0123456789ab",
    )
    plan = make_plan(wanted, chosen)
    assert [command.argv[0] for command in plan.commands] == ["qm"] * 4
    for command in plan.commands:
        options.read(list(command.argv[1:]))
    assert chosen.mark in plan.commands[0].argv[plan.commands[0].argv.index("--description") + 1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "99"],
        ["create", "105", "--nmae", "x"],
        ["create", "105", "--name", "Node_05"],
        ["create", "105", "--scsi31", "local:1"],
        ["create", "105", "--scsi0", "local:0,import_from=/x"],
        ["create", "105", "--scsi0", "local:0,iothred=1"],
        ["create", "105", "--hostpci0", "gpu0"],
        ["create", "105", "--ipconfig0", "ip=10.0.0.5"],
        ["create", "105", "--memory", "16G"],
        ["set", "105", "--start", "1"],
        ["resize", "105", "scsi0"],
        ["destroy", "105", "--purge", "yes"],
        ["shutdwon", "105"],
    ],
)
def test_the_tests_own_qm_refuses_what_is_not_documented(arguments: list[str]) -> None:
    with pytest.raises(options.WrongUsage):
        options.read(arguments)


def test_vendor_data_is_a_cloud_config_that_installs_venv() -> None:
    assert VENDOR_DATA.startswith("#cloud-config\n")
    assert yaml.safe_load(VENDOR_DATA) == {"package_update": True, "packages": ["python3-venv"]}


def test_sizes_of_disks_are_read() -> None:
    assert disk_bytes_told("local-lvm:vm-105-disk-1,iothread=1,size=64G,ssd=1") == 64 * GIB
    assert disk_bytes_told("local:105/vm-105-disk-0.qcow2,size=2252M") == 2252 * MIB
    assert disk_bytes_told("local-lvm:vm-105-disk-0,efitype=4m,size=528K") == 528 * 1024
    assert disk_bytes_told("none,media=cdrom") == 0


def test_the_lines_of_an_import_are_read() -> None:
    assert transferred("transferred 512.0 MiB of 2.0 GiB (25.00%)") == (512 * MIB, 2 * GIB)
    assert transferred("create full clone of drive scsi0") is None


def test_progress_without_a_terminal_is_a_line_now_and_then() -> None:
    now_s = 0.0
    out = io.StringIO()
    progress = Progress(out, lambda: now_s)
    for done in range(0, 101):
        now_s = done / 10
        progress.bytes("fetching x", done * MIB, 100 * MIB)
    lines = out.getvalue().splitlines()
    assert lines[0] == "fetching x: 0 B of 100.0 MiB, 0 %"
    assert lines[-1] == "fetching x: 100.0 MiB of 100.0 MiB, 100 %, 10.0 MiB/s"
    assert len(lines) < 5


def test_progress_on_a_terminal_rewrites_one_line() -> None:
    now_s = 0.0

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    progress = Progress(out, lambda: now_s)
    for second in range(5):
        now_s = float(second)
        progress.waiting("starting the VM", now_s)
    progress.say("done")
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().count("\r") >= 5
