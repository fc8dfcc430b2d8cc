"""The simulated nvidia-smi: a program of POSIX sh that needs no other program and answers in a few
milliseconds, and the facts of the GPUs that it reads. Values as real drivers print them.
"""

from __future__ import annotations

import hashlib
import shlex
import uuid
from importlib import resources
from typing import Literal

from llmgw.sim.hardware_adapters import bridge_folder, socket_of
from llmgw.sim.hardware_files import Parameters

GpuState = Literal["ok", "reset", "ecc", "lost", "xid", "unlinked"]
_UUID_SPACE = uuid.UUID("6f0c7f0e-2a0b-4b8e-9d53-0a1c5a3f7e11")
_RESERVED_MIB = 479
CUDA_VERSION = "13.1"
_RESET = "[GPU requires reset]"

# Field → unit in the heading; empty for fields without one.
FIELDS: dict[str, str] = {
    "index": "",
    "uuid": "",
    "gpu_uuid": "",
    "name": "",
    "gpu_name": "",
    "count": "",
    "serial": "",
    "pci.bus_id": "",
    "gpu_bus_id": "",
    "pci.domain": "",
    "pci.bus": "",
    "pci.device": "",
    "driver_version": "",
    "vbios_version": "",
    "compute_cap": "",
    "compute_mode": "",
    "persistence_mode": "",
    "pstate": "",
    "memory.total": "MiB",
    "memory.reserved": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "utilization.gpu": "%",
    "utilization.memory": "%",
    "temperature.gpu": "",
    "temperature.memory": "",
    "fan.speed": "%",
    "power.draw": "W",
    "power.limit": "W",
    "clocks.current.sm": "MHz",
    "pcie.link.gen.current": "",
    "pcie.link.width.current": "",
    "mig.mode.current": "",
    "mig.mode.pending": "",
    "ecc.mode.current": "",
    "ecc.errors.corrected.volatile.total": "",
    "ecc.errors.uncorrected.volatile.total": "",
    "ecc.errors.uncorrected.aggregate.total": "",
    "remapped_rows.correctable": "",
    "remapped_rows.uncorrectable": "",
    "remapped_rows.pending": "",
    "remapped_rows.failure": "",
    "gpu_recovery_action": "",
    "clocks_event_reasons.active": "",
}


def gpu_uuid(parameters: Parameters, index: int) -> str:
    """The UUID of a simulated GPU: the same each time, and another on every node and in every folder.

    Agents know engines that use their GPUs by it, also those of another agent on the same machine.
    """
    return f"GPU-{uuid.uuid5(_UUID_SPACE, f'{parameters.folder}/{parameters.node}/gpu/{index}')}"


def gpu_bus_id(index: int) -> str:
    """Eight GPUs to a PCI domain, each beside the adapter of the same number."""
    return f"{index // 8:08X}:{0x1B + 0x10 * (index % 8):02X}:00.0"


def gpu_pci_folder(index: int) -> str:
    """The GPU's PCI device below `sys/devices`: below the same bridge as the adapter of its number."""
    return f"{bridge_folder(index)}/{gpu_bus_id(index)[4:].lower()}"


def gpu_pci_files(index: int) -> dict[str, str]:
    """Path below the GPU's PCI device → text."""
    return {"vendor": "0x10de\n", "device": "0x2330\n", "numa_node": f"{socket_of(index)}\n"}


def gpu_file(parameters: Parameters, index: int, state: GpuState) -> str:
    """The facts of one GPU as assignments that the program reads; `state` is what is wrong with it."""
    lines = [f"state={state}", f"memory_total={parameters.memory_mib}"]
    lines.append(f"cuda_version={CUDA_VERSION} unified={'yes' if parameters.unified_memory else ''}")
    lines += [
        f"f_{_variable(name)}={shlex.quote(value)}" for name, value in _values(parameters, index, state).items()
    ]
    return "\n".join(lines) + "\n"


def program_text(directory: str) -> str:
    """The program. It finds its facts beside itself, and in `directory` when it is called by a link."""
    template = resources.files("llmgw.sim").joinpath("hardware_nvidia_smi.sh").read_text(encoding="utf-8")
    units = "\n".join(
        f"u_{_variable(name)}={shlex.quote(f' [{unit}]' if unit else '')}" for name, unit in FIELDS.items()
    )
    return template.replace("@DIRECTORY@", shlex.quote(directory)).replace("@UNITS@", units)


def _values(parameters: Parameters, index: int, state: GpuState) -> dict[str, str]:
    spread = hashlib.sha256(f"{parameters.node}/{index}".encode()).digest()
    bus_id = gpu_bus_id(index)
    reserved = min(_RESERVED_MIB, parameters.memory_mib // 16)
    uncorrected = "1" if state == "ecc" else "0"
    values = {
        "index": str(index),
        "uuid": gpu_uuid(parameters, index),
        "name": parameters.gpu_name,
        "count": str(parameters.gpus),
        "serial": str(1_650_000_000_000 + int.from_bytes(spread[:4], "big")),
        "pci.bus_id": bus_id,
        "pci.domain": "0x" + bus_id[4:8],
        "pci.bus": "0x" + bus_id[9:11],
        "pci.device": "0x00",
        "driver_version": parameters.driver_version,
        "vbios_version": "96.00.A5.00.01",
        "compute_cap": "9.0",
        "compute_mode": "Default",
        "persistence_mode": "Enabled",
        "pstate": "P0",
        "memory.total": f"{parameters.memory_mib} MiB",
        "memory.reserved": f"{reserved} MiB",
        "utilization.gpu": "0 %",
        "utilization.memory": "0 %",
        "temperature.gpu": str(28 + spread[4] % 14),
        "temperature.memory": str(38 + spread[5] % 12),
        "fan.speed": "[N/A]",
        "power.draw": f"{66 + spread[6] % 14}.{spread[7] % 100:02d} W",
        "power.limit": "700.00 W",
        "clocks.current.sm": "345 MHz",
        "pcie.link.gen.current": "5",
        "pcie.link.width.current": "16",
        "mig.mode.current": "Disabled",
        "mig.mode.pending": "Disabled",
        "ecc.mode.current": "Enabled",
        "ecc.errors.corrected.volatile.total": "0",
        "ecc.errors.uncorrected.volatile.total": uncorrected,
        "ecc.errors.uncorrected.aggregate.total": uncorrected,
        "remapped_rows.correctable": "0",
        "remapped_rows.uncorrectable": uncorrected,
        "remapped_rows.pending": "Yes" if state == "ecc" else "No",
        "remapped_rows.failure": "No",
        "gpu_recovery_action": "Reset" if state == "reset" else "None",
        "clocks_event_reasons.active": "0x0000000000000001",
    }
    if state == "reset":
        # As a real H100 in this state: the sensors refuse, and memory looks empty.
        for name in ("utilization.gpu", "utilization.memory", "temperature.gpu", "temperature.memory"):
            values[name] = _RESET
    if parameters.unified_memory:
        values |= {"memory.total": "[N/A]", "memory.reserved": "[N/A]"}
    return values | {
        "gpu_uuid": values["uuid"],
        "gpu_name": values["name"],
        "gpu_bus_id": values["pci.bus_id"],
    }


def _variable(name: str) -> str:
    return name.replace(".", "_")
