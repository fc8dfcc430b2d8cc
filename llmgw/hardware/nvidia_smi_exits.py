"""What nvidia-smi's exit codes mean, and what to do."""

from __future__ import annotations

# nvidia-smi(1), "RETURN VALUE", which are NVML's own numbers; 18 is NVML_ERROR_LIB_RM_VERSION_MISMATCH.
_EXIT_CODES: dict[int, tuple[str, str]] = {
    2: ("it was given an argument that it does not know", "update the NVIDIA driver"),
    4: ("this user may not ask the driver", "run the agent as a user that may open /dev/nvidia*"),
    8: ("a GPU's external power cables are not attached properly", "check the power cables"),
    9: ("the NVIDIA driver is not loaded", "load it (modprobe nvidia), or install it and reboot"),
    10: ("the kernel found an interrupt problem with a GPU", "look at dmesg, then reboot"),
    12: ("the library libnvidia-ml.so is not found", "reinstall the NVIDIA driver"),
    14: ("a GPU's infoROM is corrupted", "have the card looked at"),
    15: ("a GPU has fallen off the bus", "look at dmesg for Xid 79, then power-cycle the node"),
    18: (
        "the loaded driver and its library are of different versions",
        "reboot, or unload and load the driver, to finish the driver's update",
    ),
}


def explain_exit(code: int) -> tuple[str, str]:
    """(what happened, what to do) for an exit code of nvidia-smi other than 0."""
    if code < 0:
        return f"it was ended by signal {-code}", "run nvidia-smi by hand"
    what, remedy = _EXIT_CODES.get(
        code, ("the driver reported an error", "run nvidia-smi by hand, look at dmesg")
    )
    return f"exit code {code}: {what}", remedy
