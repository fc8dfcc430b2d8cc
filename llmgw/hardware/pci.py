"""What the PCI tree of sysfs knows about a device: which NUMA node it is next to."""

from __future__ import annotations

import re
from pathlib import Path

from llmgw.hardware.sysfs import read_text

PCI_ROOT = Path("/sys/bus/pci/devices")
_BUS_ID = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", re.IGNORECASE)
_NVIDIA = "0x10de"


def numa_node_of(bus_id: str | None, pci_root: Path = PCI_ROOT) -> int | None:
    """The NUMA node of the NVIDIA device at `00000000:1B:00.0`; None when unknown or when there is just one.

    The vendor is checked, so that a simulated GPU does not get the facts of whatever this machine has there.
    """
    match = _BUS_ID.fullmatch(bus_id or "")
    if match is None:
        return None
    device = pci_root / f"{int(match[1] or '0', 16):04x}:{match[2].lower()}"
    if read_text(device / "vendor") != _NVIDIA:
        return None
    text = read_text(device / "numa_node")
    # The kernel writes -1 on machines without NUMA.
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,4}", text) else None
