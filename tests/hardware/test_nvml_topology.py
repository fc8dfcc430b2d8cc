"""How GPUs are joined by NVML, with a library of the tests' own that answers like `pynvml`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from llmgw.hardware.nvml_topology import read_nvml_topology

SWITCH = "switch"
HIDDEN = "hidden"


class Library:
    """GPUs as lists of links: each to a GPU's number, to a switch, or to something that the driver hides."""

    NVMLError = pynvml.NVMLError
    NVMLError_ResetRequired = pynvml.NVMLError_ResetRequired
    NVMLError_GpuIsLost = pynvml.NVMLError_GpuIsLost

    def __init__(self, *links: list[Any], ancestor: int = 50, lost: int | None = None) -> None:
        self.links = links
        self.ancestor = ancestor
        self.lost = lost
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.links)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetPciInfo(self, gpu: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{gpu + 1}B:00.0".encode())

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:
        if link >= len(self.links[gpu]):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 0 if self.links[gpu][link] is None else 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:
        return {SWITCH: 2, HIDDEN: 255}.get(self.links[gpu][link], 0)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: int, link: int) -> Any:
        if isinstance(self.links[gpu][link], str):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self.nvmlDeviceGetPciInfo(self.links[gpu][link])

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, what: int) -> int:
        assert what == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        return pynvml.NVML_P2P_STATUS_OK

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return self.ancestor


def test_bridges_are_links_from_gpu_to_gpu() -> None:
    library = Library([1] * 4, [0] * 4, [3] * 4, [2] * 4, ancestor=pynvml.NVML_TOPOLOGY_NODE)
    found = read_nvml_topology(library)
    assert found.paths[0] == {1: "NV4", 2: "NODE", 3: "NODE"}
    assert [found.nvlink_peers(gpu) for gpu in range(4)] == [[1], [0], [3], [2]]
    assert library.open == 0


@pytest.mark.parametrize("end", [SWITCH, HIDDEN])
def test_behind_a_switch_all_are_joined_also_where_a_virtual_machine_does_not_see_it(end: str) -> None:
    found = read_nvml_topology(Library(*[[end] * 18] * 3))
    assert found.paths[2] == {0: "NV18", 1: "NV18"}
    assert found.through_switch(2)


def test_links_that_are_down_join_nobody() -> None:
    found = read_nvml_topology(Library([None] * 18, [None] * 18, ancestor=pynvml.NVML_TOPOLOGY_INTERNAL))
    assert found.paths == {0: {1: "PIX"}, 1: {0: "PIX"}}


def test_a_lost_gpu_costs_no_other() -> None:
    found = read_nvml_topology(Library([], [], [], ancestor=30, lost=1))
    assert (found.gpus, found.paths) == ([0, 2], {0: {2: "PHB"}, 2: {0: "PHB"}})


def test_without_a_library_nothing_is_known() -> None:
    library = Library([])
    library.nvmlInit = lambda: (_ for _ in ()).throw(pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))  # type: ignore[method-assign,assignment]
    assert read_nvml_topology(library).gpus == []
