"""Proxmox's files of VMs and containers, read: names, addresses and devices that are taken. Text in, facts out.

Format: qm.conf(5) and pct.conf(5), `key: value` a line; a section in brackets is a snapshot, except [PENDING],
whose values come with the next start and so are taken as well. `mapping/pci.cfg`: pve-guest-common,
PVE/Mapping/PCI.pm.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmgw.onboarding.provision.wanted import Address

_SECTION = re.compile(r"\[([A-Za-z0-9_:-]+)\]")
_LINE = re.compile(r"([a-z][a-z0-9_-]*):\s*(.*)")
_PCI_ID = re.compile(r"(?:([0-9a-f]{4,}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class VmConfig:
    """One guest: its settings, those of [PENDING] included, as (key, value)."""

    vmid: int
    node: str
    kind: str
    settings: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The guest's name; its VMID's words when it has none."""
        names = [value for key, value in self.settings if key in ("name", "hostname")]
        return names[0] if names else f"VM {self.vmid}"

    def __str__(self) -> str:
        return f"{'VM' if self.kind == 'qemu' else 'container'} {self.vmid} ({self.name}) on {self.node}"


def read_config(vmid: int, node: str, kind: str, text: str) -> VmConfig:
    """The file of one guest. Lines that are none of `key: value` are skipped, as Proxmox does."""
    settings = []
    counted = True
    for line in text.splitlines():
        if section := _SECTION.fullmatch(line.strip()):
            counted = section[1].upper() == "PENDING"
        elif counted and (found := _LINE.fullmatch(line.strip())):
            settings.append((found[1], found[2]))
    return VmConfig(vmid, node, kind, tuple(settings))


def addresses_of(config: VmConfig) -> set[Address]:
    """The fixed addresses of a guest: `ipconfigN` of a VM, `netN` of a container."""
    prefix = "ipconfig" if config.kind == "qemu" else "net"
    found: set[Address] = set()
    for key, value in config.settings:
        if key.rstrip("0123456789") != prefix:
            continue
        for part in value.split(","):
            name, _, text = part.partition("=")
            if name.strip() in ("ip", "ip6"):
                try:
                    found.add(ipaddress.ip_interface(text.strip()).ip)
                except ValueError:
                    continue  # dhcp, auto, manual
    return found


def devices_of(config: VmConfig, mappings: Mapping[str, Iterable[str]]) -> set[str]:
    """The PCI devices that a VM holds, as `0000:41:00` (all functions) or `0000:41:00.0`.

    `mappings` are those of the guest's own node: mapping id → devices.
    """
    found: set[str] = set()
    for key, value in config.settings:
        if key.rstrip("0123456789") != "hostpci":
            continue
        for part in value.split(","):
            name, equals, text = part.partition("=")
            if not equals:
                name, text = "host", part
            if name == "host":
                found.update(_ids(text))
            elif name == "mapping":
                for device in mappings.get(text, ()):
                    found.update(_ids(device))
    return found


def disk_bytes_told(value: str) -> int:
    """The size that a disk's setting tells, such as `local-lvm:vm-105-disk-1,size=64G`; 0 when it tells none."""
    found = re.search(r"(?:^|,)size=(\d+(?:\.\d+)?)([KMGT]?)(?:,|$)", value)  # PVE/JSONSchema.pm, parse_size
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " ")) if found else 0


def read_mappings(text: str, node: str) -> dict[str, list[str]]:
    """Mapping id → the devices of that node (`path` may name several with semicolons, joined again here)."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        if line and not line[0].isspace():
            current = found.setdefault(line.strip(), [])
            continue
        words = line.split()
        if current is None or len(words) < 2 or words[0] != "map":
            continue
        parts = dict(part.partition("=")[::2] for part in " ".join(words[1:]).split(","))
        if parts.get("node") == node and parts.get("path"):
            current.append(parts["path"])
    return found


def overlap(one: str, other: str) -> bool:
    """Whether two devices share a function: `0000:41:00` is all of `0000:41:00.1`'s."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _ids(text: str) -> set[str]:
    """`41:00.0;41:00.1` → full addresses."""
    found = set()
    for part in text.split(";"):
        read = _PCI_ID.fullmatch(part.strip())
        if read is not None:
            slot = f"{(read[1] or '0000').lower()}:{read[2].lower()}:{read[3].lower()}"
            found.add(slot if read[4] is None else f"{slot}.{read[4]}")
    return found
