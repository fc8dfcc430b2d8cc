"""How the GPUs of a node are joined, by NVML: for machines that have the library and no nvidia-smi."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any

from llmgw.hardware.nvml import read_answer
from llmgw.hardware.pci import pci_address
from llmgw.hardware.topo import Topology

# NVML_TOPOLOGY_*, nvml.h; 0 is one board with two GPUs, which nvidia-smi shows as PIX.
_WORDS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_LINKS_MAX = 36
_REMOTE_GPU, _REMOTE_SWITCH = 0, 2
_P2P_NVLINK = 2
_P2P_OK = 0


def read_nvml_topology(module: Any = None) -> Topology:
    """The paths between GPUs; adapters are not in it. Empty when NVML cannot be used."""
    nvml = module if module is not None else importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return Topology()
    try:
        return _read(nvml)
    except nvml.NVMLError:
        return Topology()
    finally:
        read_answer(nvml, nvml.nvmlShutdown)


def _read(nvml: Any) -> Topology:
    handles: dict[int, Any] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = read_answer(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is not None:
            handles[index] = handle
    buses = {
        _bus(pci): index
        for index, handle in handles.items()
        if (pci := read_answer(nvml, nvml.nvmlDeviceGetPciInfo, handle)) is not None
    }
    links = {index: _links(nvml, handle, buses) for index, handle in handles.items()}
    found = Topology(gpus=sorted(handles))
    for one, handle in handles.items():
        found.paths[one] = {}
        for other, second in handles.items():
            if other == one:
                continue
            direct = links[one][other]
            shared = min(links[one]["switch"], links[other]["switch"])
            unknown = min(links[one]["unknown"], links[other]["unknown"])
            if unknown and _p2p_by_nvlink(nvml, handle, second):
                # A virtual machine sees its links and not what is at their other end.
                shared = unknown
            if direct or shared:
                found.paths[one][other] = f"NV{direct or shared}"
                continue
            word = _WORDS.get(read_answer(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, handle, second))
            if word is not None:
                found.paths[one][other] = word
    return found


def _links(nvml: Any, handle: Any, buses: dict[str, int]) -> Counter[int | str]:
    """Active links to each other GPU by index, to a `switch`, and to what is `unknown`."""
    counts: Counter[int | str] = Counter()
    for link in range(_LINKS_MAX):
        if read_answer(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) != 1:
            continue
        kind = read_answer(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        remote = read_answer(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        peer = buses.get(_bus(remote)) if remote is not None else None
        if kind == _REMOTE_SWITCH:
            counts["switch"] += 1
        elif peer is not None and kind in (None, _REMOTE_GPU):
            counts[peer] += 1
        else:
            counts["unknown"] += 1
    return counts


def _p2p_by_nvlink(nvml: Any, one: Any, other: Any) -> bool:
    return bool(read_answer(nvml, nvml.nvmlDeviceGetP2PStatus, one, other, _P2P_NVLINK) == _P2P_OK)


def _bus(pci: Any) -> str:
    text = pci.busId
    text = text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)
    return pci_address(text) or text
