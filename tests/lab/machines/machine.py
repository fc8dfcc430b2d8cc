"""One machine: its disk over the base, its boot, the loss of its power, and ssh to it."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from llmgw.sim.hardware import HARDWARE_ENV, write_hardware
from tests.lab.machines import network
from tests.lab.machines.errors import LabError
from tests.lab.machines.places import ADAPTERS, FLEET, HARDWARE, SERVER, SSH, SSH_CONFIG, SSH_KEY, Machine
from tests.lab.machines.processes import end, pids_of, remove_groups, run, start

BOOT_S = 90.0
# What the kernel of a node with such hardware would have: simulated engines hold GPU memory there.
_AGENT_DROPIN = f"[Service]\nEnvironment={HARDWARE_ENV}=/{HARDWARE}\n"


def make_keys() -> None:
    """The key that opens every machine, one host key for each, and ssh's configuration for `scripts/lab ssh`."""
    SSH.mkdir(mode=0o700)
    for name, path in {"operator": SSH_KEY, **{name: SSH / f"host-{name}" for name in FLEET}}.items():
        run(*("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)), what="Making keys")
    known = "".join(
        f"{machine.name},{machine.address} {(SSH / f'host-{machine.name}.pub').read_text()}"
        for machine in FLEET.values()
    )
    (SSH / "known_hosts").write_text(known)
    hosts = "".join(f"Host {machine.name}\n  HostName {machine.address}\n" for machine in FLEET.values())
    SSH_CONFIG.write_text(
        f"{hosts}Host *\n  User root\n  IdentityFile {SSH_KEY}\n  IdentitiesOnly yes\n  BatchMode yes\n"
        f"  UserKnownHostsFile {SSH / 'known_hosts'}\n  GlobalKnownHostsFile none\n  ConnectTimeout 5\n"
        f"  ControlMaster auto\n  ControlPath {SSH}/%n.sock\n  ControlPersist 60\n  LogLevel ERROR\n"
    )


def make_disk(machine: Machine, base: Path) -> None:
    """Lay the machine's own disk over the base, with what tells it from the others. Raises LabError."""
    upper, work = machine.folder / "disk", machine.folder / "work"
    for folder in (upper, work, machine.root):
        folder.mkdir(parents=True)
    options = f"lowerdir={base},upperdir={upper},workdir={work}"
    run(
        *("mount", "-t", "overlay", "llmgw-lab", "-o", options, str(machine.root)),
        what=f"Mounting {machine.name}'s disk",
    )
    root = machine.root
    (root / "etc/machine-id").write_text(f"{secrets.token_hex(16)}\n")
    (root / "etc/hostname").write_text(f"{machine.name}\n")
    hosts = "".join(f"{one.address} {one.name}.internal {one.name}\n" for one in FLEET.values())
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{hosts}")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").write_text("")
    ssh = root / "root/.ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    (ssh / "authorized_keys").write_text(SSH_KEY.with_suffix(".pub").read_text())
    _copy(SSH / f"host-{machine.name}", root / "etc/ssh/ssh_host_ed25519_key", 0o600)
    if machine.name == SERVER:
        _copy(SSH_KEY, ssh / "id_ed25519", 0o600)
        _copy(SSH / "known_hosts", ssh / "known_hosts", 0o600)
    else:
        write_hardware(machine.hardware, gpus=8, adapters=len(ADAPTERS), rate_gbps=200, node=machine.name)
        dropin = root / "etc/systemd/system/llmgw-agent.service.d/lab.conf"
        dropin.parent.mkdir(parents=True)
        dropin.write_text(_AGENT_DROPIN)


def boot(machine: Machine) -> None:
    """Give the machine power and a cable; it is there when its ssh answers (`wait_for_ssh`). Raises LabError."""
    if is_on(machine):
        raise LabError(f"{machine.name} has power; scripts/lab kill {machine.name} takes it away")
    _forget_gpu_memory(machine)
    network.remove_machine(machine)
    network.plug(machine)
    start(
        machine.name,
        [
            "systemd-nspawn",
            *("--quiet", "--directory", str(machine.root), "--machine", machine.name, "--boot"),
            # There may be no systemd here that could keep a list of machines.
            *("--register=no", "--keep-unit", "--settings=no", "--link-journal=no"),
            *("--resolv-conf=off", "--timezone=off", "--console=pipe", "--notify-ready=no"),
            # Nodes are whole machines.
            "--capability=all",
            f"--network-namespace-path=/run/netns/{machine.namespace}",
        ],
        machine.folder / "console.log",
        env={"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
    )


def wait_for_ssh(machine: Machine, timeout_s: float = BOOT_S) -> None:
    """Wait until commands are run by ssh, which is before all units have started. Raises LabError."""
    deadline = time.monotonic() + timeout_s
    while True:
        done = subprocess.run(
            ssh_command(machine.name, "true", options=["-o", "ConnectTimeout=1"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return
        if not is_on(machine) or time.monotonic() > deadline:
            raise LabError(
                f"{machine.name} did not come up within {timeout_s:g} s ({done.stderr.strip()}). It said:\n"
                f"{console(machine)}"
            )
        time.sleep(0.1)


def console(machine: Machine, lines: int = 20) -> str:
    """The end of what the machine said while it booted."""
    try:
        return "\n".join((machine.folder / "console.log").read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(nothing)"


def cut_power(machine: Machine) -> None:
    """End the machine at once: nothing of it says goodbye, and its disk stays as it is. Raises LabError."""
    if network.state_of(machine) in ("up", "cut from server"):
        network.unplug(machine)
    end(machine.name, machine.namespace)
    remove_groups(machine.name)
    network.remove_machine(machine)
    _close_shared_connection(machine)


def is_on(machine: Machine) -> bool:
    """Whether it has power."""
    return bool(pids_of(machine.name))


def ssh_command(name: str, *words: str, options: Sequence[str] = ()) -> list[str]:
    """The words that run a command on a machine, or a shell where there is none."""
    return ["ssh", "-F", str(SSH_CONFIG), *options, name, *words]


def _close_shared_connection(machine: Machine) -> None:
    """What goes on over a connection to a machine that is gone would wait for it."""
    path = SSH / f"{machine.name}.sock"
    if path.exists():
        subprocess.run(
            ssh_command(machine.name, options=["-O", "exit"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
        path.unlink(missing_ok=True)


def _forget_gpu_memory(machine: Machine) -> None:
    used = machine.hardware / "used"
    for file in used.glob("*") if used.is_dir() else ():
        file.unlink()


def _copy(source: Path, target: Path, mode: int) -> None:
    shutil.copyfile(source, target)
    os.chmod(target, mode)
