"""The simulated node around its GPUs and adapters: limits, device files, kernel modules, the kernel's log."""

from __future__ import annotations

from typing import Literal

from llmgw.sim.hardware_files import Parameters

MachineState = Literal["ok", "memlock", "files", "no-devices", "no-gpudirect"]
KERNEL_LOG = "dev/kmsg"
PEER_MEMORY = "sys/module/nvidia_peermem"


def machine_files(parameters: Parameters, state: MachineState) -> dict[str, str]:
    """Path below the node's folder → text. What is missing in a state is not in it."""
    files = {
        "proc/self/limits": _limits(state),
        "proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
        "proc/driver/nvidia/version": (
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {parameters.driver_version}  "
            "Release Build  (dvs-builder@U22-I3-AE18-23-3)\n"
        ),
    }
    if state != "no-gpudirect":
        files[f"{PEER_MEMORY}/initstate"] = "live\n"
    if state != "no-devices":
        files["dev/infiniband/rdma_cm"] = ""
        for index in range(parameters.adapters):
            files[f"dev/infiniband/uverbs{index}"] = ""
    return files


def xid_line(bus_id: str, code: int, text: str) -> str:
    """What the driver writes into the kernel's log."""
    return f"NVRM: Xid (PCI:{bus_id[4:-2].lower()}): {code}, pid='<unknown>', name=<unknown>, {text}\n"


def _limits(state: MachineState) -> str:
    locked = "8388608" if state == "memlock" else "unlimited"
    files = "4096" if state == "files" else "1048576"
    rows = [
        ("Limit", "Soft Limit", "Hard Limit", "Units"),
        ("Max cpu time", "unlimited", "unlimited", "seconds"),
        ("Max processes", "513932", "513932", "processes"),
        ("Max open files", min(files, "1024", key=int), files, "files"),
        ("Max locked memory", locked, locked, "bytes"),
        ("Max address space", "unlimited", "unlimited", "bytes"),
    ]
    return "".join(f"{name:<25} {soft:<20} {hard:<20} {unit:<10}\n" for name, soft, hard, unit in rows)
