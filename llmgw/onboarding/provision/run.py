"""Provisioning from its beginning to its end: checks, the image, the VM, and waiting until ssh answers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from llmgw.config.sizes import size_words
from llmgw.onboarding.provision import images
from llmgw.onboarding.provision.carry_out import Worker, files_of
from llmgw.onboarding.provision.checks import Checked, check, left_over, whats_taken
from llmgw.onboarding.provision.errors import ProvisionError, refuse
from llmgw.onboarding.provision.image_format import disk_bytes_of
from llmgw.onboarding.provision.plan import Chosen, Plan, make_plan
from llmgw.onboarding.provision.progress import Progress
from llmgw.onboarding.provision.proxmox import Proxmox, require_programs
from llmgw.onboarding.provision.reach import wait_for_ssh
from llmgw.onboarding.provision.signals import endings_raised
from llmgw.onboarding.provision.taken import answers
from llmgw.onboarding.provision.vm_configs import disk_bytes_told
from llmgw.onboarding.provision.wanted import Wanted

LOCK_TIMEOUT_S: Final = 120.0
RUN_FOLDER: Final = "run/llmgw-provision"
SERVER_UNKNOWN: Final = "https://CONTROL-HOST:8443"
"""What the next command says for a control plane that nobody named."""


class Provisioned(msgspec.Struct, frozen=True, kw_only=True):
    """What was made, or would be (`dry_run`). `commands` are exact; `next` are commands for the operator."""

    vmid: int
    name: str
    address: str
    host: str
    storage: str
    image: str
    dry_run: bool
    commands: list[str]
    notes: list[str]
    next: list[str]


@dataclass(frozen=True, kw_only=True)
class Means:
    """The surroundings of a run. `root` is the host's file system, `token` this run's own word (letters, digits).

    `timeout_s` is for ssh to answer after the start; `keep` leaves a VM that does not.
    """

    root: Path
    home: Path
    environ: Mapping[str, str]
    token: str
    progress: Progress
    timeout_s: float
    keep: bool


def provision(wanted: Wanted, means: Means) -> Provisioned:
    """Make the VM. Raises ProvisionError, or Ended when a signal came; nothing of the VM is left then."""
    with endings_raised():
        proxmox, checked = _checked(wanted, means)
        for note in checked.notes:
            means.progress.say(f"note: {note}")
        images.bring(checked.source, means.progress.bytes)
        refuse(_against_image(wanted, checked.source.path))
        plan = _plan(wanted, checked, means)
        worker = Worker(wanted.vmid, checked.storage, _mark(means), proxmox, means.environ, means.progress)
        with worker.undoing():
            with files_of(plan):
                with _alone(means.root / RUN_FOLDER / "lock"):
                    # Fetching may have taken long; what was free may not be any more.
                    wrong = whats_taken(wanted, means.root, proxmox)[0] + answers(wanted, means.environ)
                    refuse(wrong or left_over(wanted, [checked.storage], proxmox))
                    worker.run(plan.commands[0])
                _, bring_image, grow, start = plan.commands
                worker.run(bring_image)
                _require_grown(wanted, proxmox, worker.run(grow))
                worker.run(start)
            if not means.keep:
                _wait(wanted, proxmox, means)
        if means.keep:
            _wait(wanted, proxmox, means)
        means.progress.say(f"VM {wanted.vmid} ({wanted.name}) answers at {wanted.ip.ip}")
    return _result(wanted, checked, plan, dry_run=False)


def dry_run(wanted: Wanted, means: Means) -> tuple[Provisioned, str]:
    """(what would be made, the commands as a script). All checks, no change, nothing fetched but checksums."""
    _, checked = _checked(wanted, means)
    source = checked.source
    plan = _plan(wanted, checked, means)
    script = plan.script()
    if source.path.is_file():
        images.bring(replace(source, url=None), means.progress.bytes)  # verified only, nothing is recorded
        refuse(_against_image(wanted, source.path))
    elif source.url is not None:
        fetch = f"curl --fail --location --create-dirs --output {shlex.quote(str(source.path))}"
        verify = f"echo '{source.checksum.hex}  {source.path}' | {source.checksum.kind}sum --check"
        script = f"{fetch} {shlex.quote(source.url)}\n{verify}\n{script}"
    return _result(wanted, checked, plan, dry_run=True), script


def _checked(wanted: Wanted, means: Means) -> tuple[Proxmox, Checked]:
    require_programs(means.environ)
    proxmox = Proxmox(means.environ)
    return proxmox, check(wanted, means.root, means.home, means.environ, proxmox)


def _against_image(wanted: Wanted, path: Path) -> list[str]:
    disk_bytes = disk_bytes_of(path)
    if disk_bytes <= wanted.disk_bytes:
        return []
    return [
        f"--disk {size_words(wanted.disk_bytes)} is smaller than the disk in the image {path.name} "
        f"({size_words(disk_bytes)}); disks only grow, give at least that."
    ]


def _require_grown(wanted: Wanted, proxmox: Proxmox, last: str) -> None:
    """Growing is a task, and `qm resize` ends with 0 whatever became of it (PVE/CLI/qm.pm: no `upid_exit`).

    `last` is what it said. Raises ProvisionError when the disk is smaller than wanted.
    """
    disk = (proxmox.config(wanted.vmid) or {}).get("scsi0", "")
    if disk_bytes_told(disk) < wanted.disk_bytes:
        raise ProvisionError(
            f"The disk was not grown to {size_words(wanted.disk_bytes)} ({last or 'qm resize said nothing'})."
        )


def _mark(means: Means) -> str:
    return f"llmgw-{means.token}"


def _plan(wanted: Wanted, checked: Checked, means: Means) -> Plan:
    return make_plan(
        wanted,
        Chosen(
            storage=checked.storage,
            gateway=checked.gateway,
            image=checked.source.path,
            keys_file=means.root / RUN_FOLDER / f"{wanted.vmid}-{means.token}.pub",
            keys_text=checked.keys.text,
            snippet=checked.snippet,
            mark=_mark(means),
        ),
    )


def _wait(wanted: Wanted, proxmox: Proxmox, means: Means) -> None:
    wait_for_ssh(
        str(wanted.ip.ip),
        wanted.ssh_port,
        means.timeout_s,
        lambda: proxmox.running(wanted.vmid),
        means.progress,
    )


def _result(wanted: Wanted, checked: Checked, plan: Plan, dry_run: bool) -> Provisioned:
    address = str(wanted.ip.ip)
    server = wanted.server or SERVER_UNKNOWN
    onboard = ["llmgw", "onboard-node", "--node", wanted.name, "--addr", address, "--server", server]
    onboard += ["--ssh-user", wanted.ssh_user]
    target = f"{wanted.ssh_user}@{address}"
    port = [] if wanted.ssh_port == 22 else ["-p", str(wanted.ssh_port)]
    return Provisioned(
        vmid=wanted.vmid,
        name=wanted.name,
        address=address,
        host=checked.node,
        storage=checked.storage,
        image=str(checked.source.path),
        dry_run=dry_run,
        commands=[str(command) for command in plan.commands],
        notes=list(checked.notes),
        next=[shlex.join(["ssh", *port, target, "cloud-init", "status", "--wait"]), shlex.join(onboard)],
    )


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One run on this host at a time: what is checked within is still so when the VM is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ProvisionError(f"{path} cannot be opened: {error.strerror}.") from None
    try:
        deadline_s = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise ProvisionError(
                        f"Another llmgw provision-node has been making its VM for {LOCK_TIMEOUT_S:g} s; run this "
                        "again when it is done."
                    ) from None
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)
