"""nvidia-smi's table for people and its list of UUIDs (`-L`): text in, GPUs out. No I/O, nothing raises.

The agent asks for CSV; these are what people save and send.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from llmgw.hardware.gpu_health import reset_of, why_unusable
from llmgw.hardware.nvidia_smi_cells import refuse, shown
from llmgw.messages.agent import Gpu, MigDevice

_BUS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]"
_VERSIONS = re.compile(r"Driver Version:\s*([0-9.]+)(?:.*?CUDA Version:\s*([0-9.]+))?")
# The three lines of a GPU: who it is, how it is, and whether it is cut up.
_IDENTITY = re.compile(
    rf"\|\s*(\d{{1,3}})\s+(\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM)\s*\|\s*({_BUS})\s+\S+\s*\|\s*(\S+)\s*\|"
)
_SENSORS = re.compile(
    r"\|\s*(\d+%|N/A|ERR!)\s+(\S+)\s+(P\d+|N/A|ERR!|Unknown Error|\?)\s+(\S.*?)\s*\|"
    r"\s*(\d+MiB\s*/\s*\d+MiB|Not Supported|N/A|\S.*?)\s*\|\s*(\d+%|N/A|ERR!)\s"
)
_SIZES = re.compile(r"(\d{1,12})MiB\s*/\s*(\d{1,12})MiB")
_MIG_MODE = re.compile(r"\|[^|]*\|[^|]*\|\s*(Enabled|Disabled)\*?\s*\|")
_MIG_DEVICE = re.compile(r"\|\s*(\d{1,3})\s+\d{1,3}\s+\d{1,3}\s+\d{1,3}\s*\|\s*(\d{1,12})MiB\s*/\s*(\d{1,12})MiB")
_LISTED_GPU = re.compile(r"GPU (\d{1,3}): (.{1,200}?) \(UUID: (GPU-[0-9A-Za-z-]{8,90})\)")
_LISTED_MIG = re.compile(r"\s+MIG (\S{1,40})\s+Device\s+\d{1,3}: \(UUID: (MIG-[0-9A-Za-z/-]{8,120})\)")
_PROCESSES = re.compile(r"\|\s*Processes:")
# A GPU that computes holds a context of a few hundred MiB at least.
_BUSY_PERCENT, _IDLE_MIB = 50, 64


@dataclass
class Listing:
    """GPUs of a table or a list; `unread` are its lines that say something and fit nothing."""

    gpus: list[Gpu] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def looks_like_table(text: str) -> bool:
    """True for a table, also for a part of one."""
    return any(line.lstrip().startswith("|") and "MiB" in line for line in text.splitlines())


def looks_like_list(text: str) -> bool:
    """True for the output of `nvidia-smi -L`."""
    return any(_LISTED_GPU.match(line) for line in text.splitlines())


def parse_table(lines: Sequence[str]) -> Listing:
    """GPUs in the table's order. UUIDs are not in it; what it shows as `ERR!`, `N/A` or not at all is None."""
    found = Listing()
    driver: str | None = None
    cuda: str | None = None
    for line in lines:
        if versions := _VERSIONS.search(line):
            driver, cuda = versions[1], versions[2]
        elif _PROCESSES.match(line):
            break
        elif identity := _IDENTITY.match(line):
            found.gpus.append(_identified(identity, driver, cuda))
        elif sensors := _SENSORS.match(line):
            if not found.gpus or found.gpus[-1].memory_total_mib is not None:
                # A row whose first line was cut away.
                found.gpus.append(Gpu(index=len(found.gpus), uuid="", name="unknown", driver_version=driver))
            found.gpus[-1] = _sensed(found.gpus[-1], sensors)
        elif device := _MIG_DEVICE.match(line):
            _cut(found, int(device[1]), MigDevice(memory_total_mib=int(device[3])))
        elif (mode := _MIG_MODE.match(line)) and found.gpus:
            found.gpus[-1] = msgspec.structs.replace(found.gpus[-1], mig=mode[1] == "Enabled")
    return found


def parse_list(lines: Sequence[str]) -> Listing:
    """GPUs and their MIG devices by UUID."""
    found = Listing()
    for line in lines:
        if gpu := _LISTED_GPU.match(line):
            found.gpus.append(Gpu(index=int(gpu[1]), uuid=gpu[3], name=shown(gpu[2])))
        elif (device := _LISTED_MIG.match(line)) and found.gpus:
            _cut(found, found.gpus[-1].index, MigDevice(uuid=device[2], profile=device[1]))
        elif line.strip():
            found.unread.append(line)
    return found


def _identified(match: re.Match[str], driver: str | None, cuda: str | None) -> Gpu:
    # The cell says 0, a count of errors, or that ECC is Off or N/A.
    ecc = int(match[4]) if match[4].isdecimal() else None
    gpu = Gpu(
        index=int(match[1]),
        uuid="",
        name=shown(match[2]),
        pci_bus_id=match[3],
        driver_version=driver,
        cuda_version=cuda,
        uncorrected_ecc=ecc,
    )
    reason = why_unusable(gpu.index, uncorrected_ecc=ecc)
    return refuse(gpu, reason) if reason else gpu


def _sensed(gpu: Gpu, match: re.Match[str]) -> Gpu:
    sizes = _SIZES.fullmatch(match[5])
    percent = match[6].removesuffix("%")
    temperature = match[2].removesuffix("C")
    gpu = msgspec.structs.replace(
        gpu,
        memory_used_mib=int(sizes[1]) if sizes else None,
        memory_total_mib=int(sizes[2]) if sizes else None,
        utilization_percent=int(percent) if percent.isdecimal() else None,
        temperature_c=int(temperature) if temperature.isdecimal() else None,
    )
    # One cell with ERR! is a broken fan. Together with work on a GPU that holds nothing it is one that hangs:
    # nvidia-smi -q calls for a reset then (utkuozdemir/nvidia_gpu_exporter#393).
    hangs = (gpu.utilization_percent or 0) >= _BUSY_PERCENT and (gpu.memory_used_mib or 0) < _IDLE_MIB and sizes
    if match[1] == "ERR!" and hangs and gpu.usable:
        return refuse(
            gpu,
            f"it shows ERR! and is {gpu.utilization_percent} % busy with {gpu.memory_used_mib} MiB in use, so it "
            f"hangs; stop what runs on it and {reset_of(gpu.index)}",
        )
    return gpu


def _cut(found: Listing, index: int, device: MigDevice) -> None:
    """Note a MIG device of a GPU that was listed before."""
    for at, gpu in enumerate(found.gpus):
        if gpu.index == index:
            devices = [*gpu.mig_devices, device]
            found.gpus[at] = msgspec.structs.replace(gpu, mig=True, mig_devices=devices)
