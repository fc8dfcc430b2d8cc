"""What the PCI tree of sysfs knows: which NUMA node a device is next to, how fast its link is, and
how far two devices are apart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from llmgw.hardware.sysfs import read_text
from llmgw.messages.agent import Port

PCI_ROOT = Path("/sys/bus/pci/devices")
_BUS_ID = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", re.IGNORECASE)
_DEVICE_FOLDER = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_ROOT_FOLDER = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_LINK_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")
_NVIDIA = "0x10de"
_BELOW_ONE_SWITCH, _BELOW_ONE_ROOT, _ON_ONE_NUMA_NODE = 0, 1, 2


def pci_address(bus_id: str | None) -> str | None:
    """`00000000:1B:00.0` → `0000:1b:00.0`, as the kernel names the device; None for what is no bus id."""
    match = _BUS_ID.fullmatch(bus_id or "")
    return f"{int(match[1] or '0', 16):04x}:{match[2].lower()}" if match else None


def numa_node_of(bus_id: str | None, pci_root: Path | None = PCI_ROOT) -> int | None:
    """The NUMA node of the NVIDIA device at `00000000:1B:00.0`; None when unknown or when there is just one.

    The vendor is checked, so that a simulated GPU does not get the facts of whatever this machine has there.
    """
    device = _nvidia_device(bus_id, pci_root)
    return read_numa_node(device) if device is not None else None


def read_numa_node(device: Path) -> int | None:
    """The NUMA node of a device's folder."""
    text = read_text(device / "numa_node")
    # The kernel writes -1 on machines without NUMA.
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,4}", text) else None


def address_of_folder(device: Path) -> str | None:
    """The PCI address of a device's folder, whatever links lead there; None when it is no PCI device."""
    name = os.path.basename(os.path.realpath(device))
    return name if _DEVICE_FOLDER.fullmatch(name) else None


def link_gbps(device: Path) -> float | None:
    """What the device's PCIe link carries in one direction, after its encoding: 32 GT/s × 16 lanes → 504 Gb/s.
    None when the kernel does not know speed or width, as for some devices in virtual machines.

    The headers of packets, some 10 %, are not taken off. Encodings: PCI Express Base Specification 6.0, 4.2.
    """
    if (device / "physfn").exists():
        device = device / "physfn"  # a virtual function has no link of its own
    speed = _LINK_SPEED.match(read_text(device / "current_link_speed") or "")
    width = read_text(device / "current_link_width") or ""
    # 63 and 255 are what registers say of which nothing is known.
    if speed is None or not width.isdecimal() or not 1 <= int(width) <= 32:
        return None
    lane_gtps = float(speed[1])
    encoding = 8 / 10 if lane_gtps <= 5 else 128 / 130 if lane_gtps <= 32 else 242 / 256
    return round(lane_gtps * int(width) * encoding, 1)


def nearest_adapters(bus_id: str | None, ports: Iterable[Port], pci_root: Path | None) -> list[str] | None:
    """The adapters on the shortest way from the NVIDIA device at `bus_id`, by the tree of PCI bridges: below one
    switch before below one root before on one NUMA node; none when all are on another. None when the tree does
    not have the GPU, or has no adapter.
    """
    gpu = _nvidia_device(bus_id, pci_root)
    if gpu is None or pci_root is None:
        return None
    adapters = {port.adapter: port.pci_address for port in ports if port.pci_address is not None}
    if not adapters:
        return None
    near: dict[str, tuple[int, int]] = {}
    for adapter, address in adapters.items():
        rank = _distance(gpu, pci_root / address)
        if rank is not None:
            near[adapter] = rank
    shortest = min(near.values(), default=None)
    return [adapter for adapter, rank in near.items() if rank == shortest]


def _nvidia_device(bus_id: str | None, pci_root: Path | None) -> Path | None:
    address = pci_address(bus_id)
    if address is None or pci_root is None:
        return None
    device = pci_root / address
    return device if read_text(device / "vendor") == _NVIDIA else None


def _distance(one: Path, other: Path) -> tuple[int, int] | None:
    """(what joins them, bridges between them); None when they are on different NUMA nodes, or it is unknown."""
    ours, theirs = _way(one), _way(other)
    if ours and theirs and ours[0] == theirs[0]:
        shared = 0
        while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
            shared += 1
        between = len(ours) + len(theirs) - 2 * shared
        return (_BELOW_ONE_SWITCH if shared > 1 else _BELOW_ONE_ROOT, between)
    numa = read_numa_node(one)
    return (_ON_ONE_NUMA_NODE, 0) if numa is not None and numa == read_numa_node(other) else None


def _way(device: Path) -> list[str]:
    """Root and bridges above a device, and the device: `pci0000:17`, `0000:17:01.0`, …"""
    parts = os.path.realpath(device).split(os.sep)
    roots = [at for at, part in enumerate(parts) if _ROOT_FOLDER.fullmatch(part)]
    return parts[roots[0] :] if roots else []
