"""Simulated hardware: an nvidia-smi program and a sysfs-shaped tree that an agent cannot tell from a node,
and the means to change them while it looks. Simulated engines hold GPU memory through it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from llmgw.messages.agent import GPUS_PER_NODE_MAX, NODE_ID_PATTERN, PORTS_PER_NODE_MAX
from llmgw.sim.hardware_adapters import (
    LINK_DOWNED_MAX,
    RATES,
    PortState,
    adapter_files,
    adapter_name,
    gid_files,
    pci_files,
    pci_folder,
    port_files,
)
from llmgw.sim.hardware_files import (
    HardwareError,
    Parameters,
    claim_folder,
    load_parameters,
    save_parameters,
    write_file,
    write_link,
)
from llmgw.sim.hardware_machine import KERNEL_LOG, PEER_MEMORY, MachineState, machine_files, xid_line
from llmgw.sim.hardware_nvidia_smi import (
    GpuState,
    gpu_bus_id,
    gpu_file,
    gpu_pci_files,
    gpu_pci_folder,
    gpu_uuid,
    program_text,
)
from llmgw.sim.hardware_topology import topology_text

__all__ = [
    "HARDWARE_ENV",
    "HardwareError",
    "SimulatedHardware",
    "hold_gpu_memory",
    "release_gpu_memory",
    "set_gpu",
    "set_machine",
    "set_port",
    "write_hardware",
]

HARDWARE_ENV = "LLMGW_SIM_HARDWARE"
"""The variable that tells a simulated engine in which folder to hold its GPU memory."""

_PCI_DEVICES = "sys/bus/pci/devices"
LINK_LAYERS = ("InfiniBand", "Ethernet")
MEMORY_MIB_MAX = 16 * 1024 * 1024
LID_MAX = 0xBFFF
_GPU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/+()-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class SimulatedHardware:
    """Where a simulated node's hardware lies, as `agent.yaml` wants it under `discovery`."""

    directory: Path
    nvidia_smi: Path
    ib_root: Path
    gpu_uuids: list[str]
    adapters: list[str]


def write_hardware(
    directory: Path,
    *,
    gpus: int = 8,
    adapters: int = 2,
    rate_gbps: float = 400,
    gpu_name: str = "NVIDIA H100 80GB HBM3",
    memory_mib: int = 81559,
    link_layer: str = "InfiniBand",
    node: str | None = None,
    sm_lid: int = 1,
    driver_version: str = "590.48.01",
    nvlink: Literal["switch", "pairs", "none"] = "switch",
    unified_memory: bool = False,
) -> SimulatedHardware:
    """Write a node's hardware into `directory`, which is new, empty, or was written by this function before.

    `node` (default: this host's name) and the folder seed UUIDs, the node alone GUIDs and LIDs, so that nodes
    differ and the same node is always the same. Every GPU is whole and every port ACTIVE afterwards. Raises
    HardwareError.
    """
    directory = Path(os.path.abspath(directory))
    parameters = Parameters(
        node=node if node is not None else _host_name(),
        folder=str(directory),
        gpus=gpus,
        adapters=adapters,
        rate_gbps=rate_gbps,
        gpu_name=gpu_name,
        memory_mib=memory_mib,
        link_layer=link_layer,
        sm_lid=sm_lid,
        driver_version=driver_version,
        nvlink=nvlink,
        unified_memory=unified_memory,
    )
    _check(parameters)
    claim_folder(directory)
    save_parameters(directory, parameters)
    _make_folders(directory)
    for index in range(gpus):
        write_file(directory, f"gpus/{index:03d}", gpu_file(parameters, index, "ok"))
        _write_gpu_device(directory, index)
    for index in range(adapters):
        _write_adapter(directory, parameters, index)
    write_file(directory, "topology", topology_text(parameters))
    write_file(directory, KERNEL_LOG, "")
    _write_machine(directory, parameters, "ok")
    _remove_surplus(directory, parameters)
    write_file(directory, "nvidia-smi", program_text(str(directory)), mode=0o755)
    if not os.access(directory / "nvidia-smi", os.X_OK):
        raise HardwareError(
            f"{directory} is on a file system that runs no programs (noexec), and nvidia-smi must run; "
            "name a folder on another one"
        )
    return _describe(directory, parameters)


def set_port(directory: Path, adapter: str, state: PortState, *, port: int = 1) -> None:
    """Take a port `down` (cable out), to `init` (link up, no subnet manager), to `slow` (one lane of four), to
    `unaddressed` (RoCE without an IP address), or back to `active`.

    Every file is replaced as a whole, and `state` goes down first and comes up last. Going down counts in
    `link_downed`. Raises HardwareError, also for an adapter or port that does not exist.
    """
    directory = Path(os.path.abspath(directory))
    parameters = load_parameters(directory)
    names = [adapter_name(index) for index in range(parameters.adapters)]
    if adapter not in names:
        raise HardwareError(f"{adapter} is no adapter of {directory}; it has {', '.join(names) or 'none'}")
    if port != 1:
        raise HardwareError(f"{adapter} has no port {port}; it has port 1")
    if state not in get_args(PortState):
        raise HardwareError(f"{state!r} is not a state of a port; write {', '.join(get_args(PortState))}")
    if state == "unaddressed" and parameters.link_layer != "Ethernet":
        raise HardwareError(
            f"{adapter} is an InfiniBand port, which needs no IP address; write down, init, slow or active"
        )
    if state == "init" and parameters.link_layer == "Ethernet":
        raise HardwareError(
            f"{adapter} is an Ethernet port, which needs no subnet manager and is never in INIT; "
            "write down or active"
        )
    index = names.index(adapter)
    folder = _adapter_folder(index)
    if state == "down":
        _count_down(directory, folder)
    _write_gids(directory, parameters, index, state)
    for path, text in port_files(parameters, index, state):
        write_file(directory, f"{folder}/{path}", text)


def set_gpu(directory: Path, index: int, state: GpuState) -> None:
    """Break a GPU as real ones break, or mend it: `reset` (the driver asks for a reset), `ecc` (an
    uncorrectable memory error), `lost` (off the bus), `xid` (a fatal error in the kernel's log alone), `unlinked`
    (its NVLinks are gone), `ok` (mended, which clears the log). Raises HardwareError.
    """
    directory = Path(os.path.abspath(directory))
    parameters = load_parameters(directory)
    if not 0 <= index < parameters.gpus:
        has = f"it has 0 to {parameters.gpus - 1}" if parameters.gpus else "it has none"
        raise HardwareError(f"{index} is no GPU of {directory}; {has}")
    if state not in get_args(GpuState):
        raise HardwareError(f"{state!r} is not a state of a GPU; write {', '.join(get_args(GpuState))}")
    write_file(directory, f"gpus/{index:03d}", gpu_file(parameters, index, state))
    states = {number: _gpu_state(directory, number) for number in range(parameters.gpus)}
    unlinked = [number for number, its in states.items() if its == "unlinked"]
    write_file(directory, "topology", topology_text(parameters, unlinked))
    broken = [number for number, its in states.items() if its == "xid"]
    lines = [
        xid_line(gpu_bus_id(number), 119, "Timeout after 45s of waiting for RPC response") for number in broken
    ]
    write_file(directory, KERNEL_LOG, "".join(lines))


def set_machine(directory: Path, state: MachineState) -> None:
    """Take away what programs need to use adapters: `memlock` (they may lock next to nothing), `files` (they may
    open few), `no-devices` (no /dev/infiniband), `no-gpudirect` (no peer memory); `ok` gives all back.

    Raises HardwareError.
    """
    directory = Path(os.path.abspath(directory))
    parameters = load_parameters(directory)
    if state not in get_args(MachineState):
        raise HardwareError(f"{state!r} is not a state of a machine; write {', '.join(get_args(MachineState))}")
    _write_machine(directory, parameters, state)


def hold_gpu_memory(directory: Path, uuids: Sequence[str], mib: int, pid: int | None = None) -> None:
    """Let process `pid` (default: this one) hold `mib` MiB on each of the GPUs, as nvidia-smi then shows.

    It counts only while that very process lives: a killed engine's memory is free at once. Calling it again
    replaces the amount. Raises HardwareError for a GPU that is not in `directory`.
    """
    directory = Path(os.path.abspath(directory))
    parameters = load_parameters(directory)
    pid = os.getpid() if pid is None else pid
    known = {gpu_uuid(parameters, index) for index in range(parameters.gpus)}
    for uuid in uuids:
        if uuid not in known:
            raise HardwareError(f"{uuid} is no GPU of {directory}; {directory}/nvidia-smi -L lists them")
    if mib < 0:
        raise HardwareError(f"{mib} MiB cannot be held; write 0 or more")
    for uuid in uuids:
        _forget_dead(directory, uuid)
        write_file(directory, f"used/{uuid}.{pid}", f"{mib} {_start_ticks(pid)}\n")


def release_gpu_memory(directory: Path, uuids: Sequence[str], pid: int | None = None) -> None:
    """Let go of what `hold_gpu_memory` took; what was not held is no error."""
    pid = os.getpid() if pid is None else pid
    for uuid in uuids:
        try:
            (Path(directory) / "used" / f"{uuid}.{pid}").unlink(missing_ok=True)
        except OSError as error:
            raise HardwareError(f"memory held in {directory} cannot be let go: {error.strerror}") from None


def _gpu_state(directory: Path, index: int) -> str:
    try:
        first = (directory / f"gpus/{index:03d}").read_text(encoding="utf-8").partition("\n")[0]
    except OSError as error:
        raise HardwareError(f"{directory} is damaged ({error}); make it again: llmgw sim hardware") from None
    return first.removeprefix("state=")


def _count_down(directory: Path, folder: str) -> None:
    """Count a link that goes down; one that is down already does not go down again."""
    counter = f"{folder}/ports/1/counters/link_downed"
    try:
        if (directory / folder / "ports/1/state").read_text(encoding="utf-8").startswith("1:"):
            return
        count = int((directory / counter).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HardwareError(f"{directory} is damaged ({error}); make it again: llmgw sim hardware") from None
    write_file(directory, counter, f"{min(count + 1, LINK_DOWNED_MAX)}\n")


def _forget_dead(directory: Path, uuid: str) -> None:
    """Remove what processes left that ended without letting go."""
    if not Path("/proc/self").exists():
        return
    for file in (directory / "used").glob(f"{uuid}.*"):
        if not Path("/proc", file.suffix[1:]).exists():
            file.unlink(missing_ok=True)


def _start_ticks(pid: int) -> str:
    """When the process started (proc(5), field 22 of stat), so that a later one of the same id is not taken
    for it; empty where there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(") ")[2].split()[19]


def _check(parameters: Parameters) -> None:
    for what, value, maximum in (
        ("GPUs", parameters.gpus, GPUS_PER_NODE_MAX),
        ("adapters", parameters.adapters, PORTS_PER_NODE_MAX // 2),
    ):
        if not 0 <= value <= maximum:
            raise HardwareError(
                f"{value} {what} are not possible on one node; write a number from 0 to {maximum}"
            )
    if parameters.rate_gbps not in RATES:
        rates = ", ".join(f"{rate:g} ({name})" for rate, (name, _) in RATES.items())
        raise HardwareError(f"{parameters.rate_gbps:g} Gb/s is not the rate of an adapter; write one of {rates}")
    if not 16 <= parameters.memory_mib <= MEMORY_MIB_MAX:
        raise HardwareError(
            f"{parameters.memory_mib} MiB is not the memory of a GPU; write a number from 16 to {MEMORY_MIB_MAX}"
        )
    if not _GPU_NAME.fullmatch(parameters.gpu_name):
        raise HardwareError(
            f"{parameters.gpu_name!r} is not the name of a GPU; use letters, digits, blanks and . _ / + ( ) -, "
            "at most 64"
        )
    if parameters.link_layer not in LINK_LAYERS:
        raise HardwareError(f"{parameters.link_layer!r} is not a link layer; write {' or '.join(LINK_LAYERS)}")
    if not re.fullmatch(NODE_ID_PATTERN, parameters.node):
        raise HardwareError(
            f"{parameters.node!r} is not a node id; it is a host name of lower-case letters, digits, '-' and '.'"
        )
    if parameters.nvlink not in ("switch", "pairs", "none"):
        raise HardwareError(f"{parameters.nvlink!r} is no way to join GPUs; write switch, pairs or none")
    if not 1 <= parameters.sm_lid <= LID_MAX:
        raise HardwareError(f"{parameters.sm_lid} is not a LID; write a number from 1 to {LID_MAX}")
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", parameters.driver_version):
        raise HardwareError(f"{parameters.driver_version!r} is not a driver version; write one like 590.48.01")


def _host_name() -> str:
    name = re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower())[:63].strip("-.")
    return name or "node"


def _make_folders(directory: Path) -> None:
    try:
        for name in ("gpus", "used", "ib", "sys/devices", _PCI_DEVICES):
            (directory / name).mkdir(parents=True, exist_ok=True)
        # Engines may run as another user than the one who wrote the folder.
        (directory / "used").chmod(0o1777)
        (directory / ".staging").chmod(0o1777)
    except OSError as error:
        raise HardwareError(f"{directory} cannot be written: {error.strerror}") from None


def _adapter_folder(index: int) -> str:
    return f"sys/devices/{pci_folder(index)}/infiniband/{adapter_name(index)}"


def _write_adapter(directory: Path, parameters: Parameters, index: int) -> None:
    folder = _adapter_folder(index)
    for path, text in pci_files(parameters, index).items():
        write_file(directory, f"sys/devices/{pci_folder(index)}/{path}", text)
    files = adapter_files(parameters, index)
    for path, text in files.items():
        write_file(directory, f"{folder}/{path}", text)
    for path, text in port_files(parameters, index, "active"):
        write_file(directory, f"{folder}/{path}", text)
    _write_gids(directory, parameters, index, "active")
    for entry in (directory / folder / "ports/1/pkeys").glob("*"):
        if f"ports/1/pkeys/{entry.name}" not in files:
            entry.unlink(missing_ok=True)
    write_link(directory, f"{folder}/device", "../..")
    write_link(directory, f"ib/{adapter_name(index)}", f"../{folder}")
    _write_device(directory, pci_folder(index))


def _write_gids(directory: Path, parameters: Parameters, index: int, state: PortState) -> None:
    folder = _adapter_folder(index)
    files = gid_files(parameters, index, state)
    for path, text in files.items():
        write_file(directory, f"{folder}/{path}", text)
    # The same adapter with the other link layer, or with an address, has more.
    for table in ("ports/1/gids", "ports/1/gid_attrs/types", "ports/1/gid_attrs/ndevs"):
        for entry in (directory / folder / table).glob("*"):
            if f"{table}/{entry.name}" not in files:
                entry.unlink(missing_ok=True)


def _write_gpu_device(directory: Path, index: int) -> None:
    for path, text in gpu_pci_files(index).items():
        write_file(directory, f"sys/devices/{gpu_pci_folder(index)}/{path}", text)
    _write_device(directory, gpu_pci_folder(index))


def _write_device(directory: Path, pci: str) -> None:
    write_link(directory, f"{_PCI_DEVICES}/{pci.rpartition('/')[2]}", f"../../../devices/{pci}")


def _write_machine(directory: Path, parameters: Parameters, state: MachineState) -> None:
    try:
        for folder in (directory / PEER_MEMORY, directory / "dev" / "infiniband"):
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise HardwareError(f"{directory} cannot be cleared: {error.strerror}; remove it by hand") from None
    for path, text in machine_files(parameters, state).items():
        write_file(directory, path, text)


def _remove_surplus(directory: Path, parameters: Parameters) -> None:
    """Take away what an earlier, larger node left in the folder."""
    adapters = {adapter_name(index) for index in range(parameters.adapters)}
    adapter_devices = [pci_folder(index) for index in range(parameters.adapters)]
    gpu_devices = [gpu_pci_folder(index) for index in range(parameters.gpus)]
    devices = {device.rpartition("/")[2] for device in (*adapter_devices, *gpu_devices)}
    roots = {device.partition("/")[0] for device in (*adapter_devices, *gpu_devices)}
    gpus = {f"{index:03d}" for index in range(parameters.gpus)}
    try:
        for link in (directory / "ib").iterdir():
            if link.name not in adapters:
                link.unlink()
        for link in (directory / _PCI_DEVICES).iterdir():
            if link.name not in devices:
                shutil.rmtree(link.resolve(), ignore_errors=True)
                link.unlink()
        for folder in (directory / "sys/devices").iterdir():
            if folder.name not in roots:
                shutil.rmtree(folder)
        for file in (directory / "gpus").iterdir():
            if file.name not in gpus:
                file.unlink()
    except OSError as error:
        raise HardwareError(f"{directory} cannot be cleared: {error.strerror}; remove it by hand") from None


def _describe(directory: Path, parameters: Parameters) -> SimulatedHardware:
    return SimulatedHardware(
        directory=directory,
        nvidia_smi=directory / "nvidia-smi",
        ib_root=directory / "ib",
        gpu_uuids=[gpu_uuid(parameters, index) for index in range(parameters.gpus)],
        adapters=[adapter_name(index) for index in range(parameters.adapters)],
    )
