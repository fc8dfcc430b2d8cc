"""PCI devices of the host as sysfs shows them: functions, drivers, IOMMU groups. Only reads.

Starting a VM binds *every* device of the passed one's IOMMU group to vfio-pci, bridges excepted (pve-common,
PVE/SysFSTools.pm, pci_dev_group_bind_to_vfio), so the others of the group matter as much as the device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.onboarding.provision.vm_configs import VmConfig, devices_of, overlap
from llmgw.onboarding.provision.wanted import PciAddress

# The classes of pci.ids (its `C` lines). Only for sentences.
_KINDS: Final = {
    "01": "storage",
    "02": "network",
    "03": "display",
    "04": "audio",
    "06": "bridge",
    "07": "communication",
    "08": "system",
    "0c": "serial bus",
    "10": "encryption",
    "12": "accelerator",
}
FREE_DRIVERS: Final = frozenset({"", "vfio-pci", "pcieport", "pci-stub"})
"""Drivers that nothing on the host is served by."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a device. `group` is the IOMMU group's number, None without IOMMU."""

    address: str
    kind: str
    vendor: str
    driver: str
    group: str | None
    bridge: bool
    in_use: str
    """What of the host runs over it, such as `vmbr0 (over enp65s0)`; empty when nothing does."""
    relatives: tuple[str, ...]
    """Its virtual functions (SR-IOV), or the physical one that it is a virtual one of."""

    def __str__(self) -> str:
        driver = f", driver {self.driver}" if self.driver else ""
        return f"{self.address} ({self.kind}, vendor {self.vendor}{driver})"


class PciBus:
    """The devices below `root`/sys/bus/pci."""

    def __init__(self, root: Path) -> None:
        self._devices = root / "sys/bus/pci/devices"
        self._iommu = root / "sys/class/iommu"
        self._root = root

    def iommu_on(self) -> bool:
        """Whether the kernel has an IOMMU: the same question as PVE/SysFSTools.pm's check_iommu_support."""
        return self._iommu.is_dir() and any(self._iommu.iterdir())

    def functions(self, wanted: PciAddress) -> list[Function]:
        """The functions that an address means: all of the device without a function. Empty: no such device."""
        if not self._devices.is_dir():
            return []
        if wanted.function is not None:
            names = [str(wanted)] if (self._devices / str(wanted)).exists() else []
        else:
            names = sorted(
                path.name for path in self._devices.iterdir() if path.name.startswith(f"{wanted.slot}.")
            )
        return [self.function(name) for name in names]

    def function(self, address: str) -> Function:
        """One function by its full address."""
        folder = self._devices / address
        group = _link(folder / "iommu_group")
        return Function(
            address=address,
            kind=_KINDS.get(_text(folder / "class").removeprefix("0x")[:2], "other"),
            vendor=_text(folder / "vendor").removeprefix("0x") or "unknown",
            driver=_link(folder / "driver"),
            group=group or None,
            bridge=(folder / "pci_bus").exists(),
            in_use=self._in_use(folder) or self._virtual_in_use(folder),
            relatives=tuple(
                sorted({_link(path) for path in (*folder.glob("virtfn*"), folder / "physfn")} - {""})
            ),
        )

    def group(self, number: str) -> list[Function]:
        """All functions of an IOMMU group."""
        names = sorted(path.name for path in self._devices.iterdir()) if self._devices.is_dir() else []
        found = (self.function(name) for name in names if _link(self._devices / name / "iommu_group") == number)
        return list(found)

    def _in_use(self, folder: Path) -> str:
        routed = self._routed()
        for interface in sorted(folder.glob("net/*")):
            if master := _link(interface / "master"):
                return f"{master} (over {interface.name})"
            # Bridges, bonds, VLANs and all else that is stacked on it: net/core/dev.c, netdev_adjacent_sysfs_add.
            for upper in sorted(interface.glob("upper_*")):
                return f"{upper.name.removeprefix('upper_')} (over {interface.name})"
            if interface.name in routed:
                return f"the network of {interface.name}"
        # Mounts, LVM, RAID and ZFS each show elsewhere what they hold; a bound driver is seen in one place.
        if _text(folder / "class").startswith("0x01") and _link(folder / "driver") not in FREE_DRIVERS:
            return "disks"
        # Also disks behind what is no storage controller by its class: Fibre Channel, USB.
        if found := sorted(path.name for path in self._disks() if f"/{folder.name}/" in os.readlink(path)):
            return f"disks ({', '.join(found[:4])})"
        return ""

    def _virtual_in_use(self, folder: Path) -> str:
        """What of the host runs over virtual functions of a device, which go when it is taken away."""
        found = (self._in_use(self._devices / _link(path)) for path in sorted(folder.glob("virtfn*")))
        return next(filter(None, found), "")

    def _routed(self) -> set[str]:
        """The interfaces with routes. proc(5): IPv6's link-local and multicast ones are every interface's own."""
        lines = _text(self._root / "proc/net/route").splitlines()[1:]
        found = {line.split()[0] for line in lines if line.strip()}
        for line in _text(self._root / "proc/net/ipv6_route").splitlines():
            words = line.split()
            if len(words) > 9 and not words[0].startswith(("fe8", "ff")):
                found.add(words[9])
        return found

    def _disks(self) -> list[Path]:
        """Block devices: links whose targets tell the way through the buses (Documentation/filesystems/sysfs)."""
        folder = self._root / "sys/block"
        return [path for path in folder.iterdir() if path.is_symlink()] if folder.is_dir() else []


def judge(
    bus: PciBus,
    wanted: Iterable[PciAddress],
    guests: Iterable[VmConfig],
    node: str,
    mappings: dict[str, list[str]],
) -> tuple[list[str], list[str]]:
    """(what stands against passing these devices, what else is worth saying), as sentences.

    `guests` are those of the whole cluster; only those of `node`, this host, can hold its devices.
    """
    wanted = list(wanted)
    if not wanted:
        return [], []
    if not bus.iommu_on():
        return [
            "This host's IOMMU is off, so no device can be passed to a VM: turn on VT-d or AMD-Vi in the "
            "firmware, add intel_iommu=on to the kernel's command line on Intel, run update-grub or "
            "proxmox-boot-tool refresh, and start the host again."
        ], []
    held = [
        (guest, device)
        for guest in guests
        if guest.kind == "qemu" and guest.node == node
        for device in sorted(devices_of(guest, mappings))
    ]
    wrong: list[str] = []
    notes: list[str] = []
    passed: set[str] = set()
    functions: list[tuple[PciAddress, Function]] = []
    for address in wanted:
        found = bus.functions(address)
        if not found:
            wrong.append(f"--pci {address}: there is no such device on {node}; lspci -D lists them.")
        functions += [(address, function) for function in found]
        passed.update(function.address for function in found)
    told_groups: set[str] = set()
    for address, function in functions:
        wrong += _against_passing(address, function, held)
        if function.group is None:
            wrong.append(
                f"--pci {address}: {function} is in no IOMMU group, so it cannot be passed; check dmesg for DMAR "
                "or AMD-Vi."
            )
        elif function.group not in told_groups:
            told_groups.add(function.group)
            others = [
                each for each in bus.group(function.group) if each.address not in passed and not each.bridge
            ]
            for other in others:
                reason = _against_taking(other, held, passed)
                if reason:
                    wrong.append(
                        f"--pci {address} is in IOMMU group {function.group} together with {other}, {reason}, "
                        "and a VM takes the whole group: put the card into another slot, or turn on ACS in the "
                        "firmware."
                    )
                else:
                    notes.append(
                        f"--pci {address}: {other} is in the same IOMMU group {function.group} and will be taken "
                        "from the host while the VM runs"
                    )
    return list(dict.fromkeys(wrong)), notes


def _against_passing(address: PciAddress, function: Function, held: list[tuple[VmConfig, str]]) -> list[str]:
    wrong = [
        f"--pci {address}: {function.address} belongs to {guest} already (running or not); take it out there "
        f"with qm set {guest.vmid} --delete hostpciN, or choose another device."
        for guest, device in held
        if overlap(function.address, device)
    ]
    wrong += [
        f"--pci {address}: {relative}, of the same adapter by SR-IOV, belongs to {guest} already; pass the "
        "physical function or its virtual ones to VMs, not both."
        for guest, device in held
        for relative in function.relatives
        if overlap(relative, device)
    ]
    if function.bridge:
        wrong.append(
            f"--pci {address}: {function} is a bridge, which cannot be passed; name the device behind it."
        )
    if function.in_use:
        wrong.append(
            f"--pci {address}: {function} carries {function.in_use} of this host, which would lose it; choose "
            "another."
        )
    return wrong


def _against_taking(other: Function, held: list[tuple[VmConfig, str]], passed: set[str]) -> str:
    """Why a device that only shares the group must not be taken; empty when nothing needs it."""
    for guest, device in held:
        if overlap(other.address, device):
            return f"which belongs to {guest}"
    if other.in_use:
        return f"which carries {other.in_use} of this host"
    slot = other.address.partition(".")[0]
    if any(address.partition(".")[0] == slot for address in passed):
        return ""  # a GPU's own sound, whatever driver has it
    return "" if other.driver in FREE_DRIVERS else "which this host uses"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""
