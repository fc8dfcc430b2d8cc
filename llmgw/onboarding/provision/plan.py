"""The exact commands that make a VM, in order. What runs is what `--dry-run` prints.

Options: qm(1) of Proxmox VE 8 and 9 (pve-docs, generated/qm.1-synopsis.adoc). For passed-through PCIe devices
Proxmox's manual recommends q35 with OVMF (qm.adoc, "PCI(e) Passthrough"); every node gets the same machine.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.onboarding.provision.cloud_init import VENDOR_DATA
from llmgw.onboarding.provision.wanted import MIB, Address, Wanted

CREATE_TIMEOUT_S: Final = 300.0
IMPORT_TIMEOUT_S: Final = 4 * 3600.0
RESIZE_TIMEOUT_S: Final = 600.0
START_TIMEOUT_S: Final = 1800.0
"""With hundreds of gigabytes for passed-through devices, all of it is allocated and pinned at the start."""


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A file that must have this text before the commands. `kept`: it stays, as others may refer to it."""

    path: Path
    text: str
    mode: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Command:
    """One command, run without a shell. `doing` is what progress calls it."""

    doing: str
    argv: tuple[str, ...]
    timeout_s: float

    def __str__(self) -> str:
        return shlex.join(self.argv)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What checks found and decided. `snippet` is (volume, path) of the vendor data; None: no packages."""

    storage: str
    gateway: Address | None
    image: Path
    keys_file: Path
    keys_text: str
    snippet: tuple[str, Path] | None
    mark: str
    """What this run's VM has in its description, and no other VM: letters, digits and hyphens."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Files first, then the commands: make the VM, import the image, grow the disk, start it."""

    files: tuple[WriteFile, ...]
    commands: tuple[Command, ...]

    def script(self) -> str:
        """The same for a shell, to read or to run by hand."""
        lines = []
        for file in self.files:
            lines.append(f"install -D -m {file.mode:o} /dev/stdin {shlex.quote(str(file.path))} <<'END'")
            lines.append(f"{file.text.rstrip()}\nEND")
        lines += [str(command) for command in self.commands]
        return "".join(f"{line}\n" for line in lines)


def make_plan(wanted: Wanted, chosen: Chosen) -> Plan:
    """All that is done, once every check has passed. Pure."""
    vmid = str(wanted.vmid)
    files = [WriteFile(chosen.keys_file, chosen.keys_text, 0o600, kept=False)]
    if chosen.snippet is not None:
        files.append(WriteFile(chosen.snippet[1], VENDOR_DATA, 0o644, kept=True))
    disk = f"{chosen.storage}:0,import-from={chosen.image},discard=on,iothread=1,ssd=1"
    return Plan(
        tuple(files),
        (
            Command("making the VM", ("qm", "create", vmid, *_create_options(wanted, chosen)), CREATE_TIMEOUT_S),
            Command(
                "importing the image",
                ("qm", "set", vmid, "--scsi0", disk, "--boot", "order=scsi0"),
                IMPORT_TIMEOUT_S,
            ),
            Command(
                "growing the disk",
                ("qm", "resize", vmid, "scsi0", qm_size(wanted.disk_bytes)),
                RESIZE_TIMEOUT_S,
            ),
            Command("starting the VM", ("qm", "start", vmid), START_TIMEOUT_S),
        ),
    )


def qm_size(size_bytes: int) -> str:
    """A size as `qm resize` takes it, exact: `64G`. `size_bytes` is a whole number of MiB."""
    mib = size_bytes // MIB
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def _create_options(wanted: Wanted, chosen: Chosen) -> list[str]:
    options = {
        "name": wanted.name,
        "description": f"llmgw node {wanted.name}, made by llmgw provision-node ({chosen.mark})",
        "tags": "llmgw",
        "ostype": "l26",
        "machine": "q35",
        "bios": "ovmf",
        # Without enrolled keys Secure Boot is off: drivers that are built on the node are not signed.
        "efidisk0": f"{chosen.storage}:1,efitype=4m,pre-enrolled-keys=0",
        "cpu": "host",
        "sockets": str(wanted.sockets),
        "cores": str(wanted.cores // wanted.sockets),
        "numa": "1",
        "memory": str(wanted.memory_bytes // MIB),
        "balloon": "0",
        "scsihw": "virtio-scsi-single",
        "net0": f"virtio,bridge={wanted.bridge}",
        "serial0": "socket",
        "onboot": "1",
        "ide2": f"{chosen.storage}:cloudinit",
        "ipconfig0": _ipconfig(wanted, chosen.gateway),
        "ciuser": wanted.ssh_user,
        "sshkeys": str(chosen.keys_file),
    }
    if wanted.hugepages is not None:
        options["hugepages"] = wanted.hugepages
    if chosen.snippet is not None:
        options["cicustom"] = f"vendor={chosen.snippet[0]}"
    else:
        options["ciupgrade"] = "0"  # without packages the node need not reach a mirror
    for number, device in enumerate(wanted.pci):
        options[f"hostpci{number}"] = f"{device},pcie=1"
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _ipconfig(wanted: Wanted, gateway: Address | None) -> str:
    six = "6" if wanted.ip.version == 6 else ""
    return f"ip{six}={wanted.ip}" + (f",gw{six}={gateway}" if gateway is not None else "")
