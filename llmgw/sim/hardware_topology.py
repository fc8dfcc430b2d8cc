"""The simulated node's topology: what its nvidia-smi prints for `topo -m`, as real drivers print it. No I/O."""

from __future__ import annotations

from collections.abc import Collection

from llmgw.sim.hardware_adapters import adapter_name, socket_of
from llmgw.sim.hardware_files import Parameters

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def topology_text(parameters: Parameters, unlinked: Collection[int] = ()) -> str:
    """The table. GPUs in `unlinked` have lost their NVLinks."""
    gpus, nics = range(parameters.gpus), range(parameters.adapters)
    heading = [f"GPU{index}" for index in gpus] + [f"NIC{index}" for index in nics]
    lines = ["\t\x1b[4m" + "\t".join([*heading, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\x1b[0m"]
    for one in gpus:
        cells = [_between(parameters, one, other, unlinked) for other in gpus]
        cells += [_pci(one, other) if one != other else "PIX" for other in nics]
        # A cell more than the heading has, as real ones do.
        lines.append("\t".join([f"GPU{one}", *cells, _cpus(one), str(socket_of(one)), "", "N/A"]))
    for one in nics:
        cells = [_pci(one, other) if one != other else "PIX" for other in gpus]
        cells += [_pci(one, other) if one != other else " X " for other in nics]
        lines.append("\t".join([f"NIC{one}", *cells, "", "", "", ""]))
    legend = [f"  NIC{index}: {adapter_name(index)}" for index in nics]
    names = ["", "NIC Legend:", "", *legend, ""] if legend else [""]
    return "\n".join(lines) + "\n" + _LEGEND + "\n".join(names)


def _between(parameters: Parameters, one: int, other: int, unlinked: Collection[int]) -> str:
    if one == other:
        return " X "
    linked = parameters.nvlink == "switch" or (parameters.nvlink == "pairs" and one // 2 == other // 2)
    if linked and one not in unlinked and other not in unlinked:
        return "NV18" if parameters.nvlink == "switch" else "NV4"
    return _pci(one, other)


def _pci(one: int, other: int) -> str:
    return "NODE" if socket_of(one) == socket_of(other) else "SYS"


def _cpus(index: int) -> str:
    first = 56 * socket_of(index)
    return f"{first}-{first + 55}"
