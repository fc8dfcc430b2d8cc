"""When a GPU takes no new shard, said once for all readers. Facts in, a sentence out."""

from __future__ import annotations

from llmgw.messages.agent import THROTTLE_REASONS


def why_unusable(
    index: int,
    *,
    error_word: str | None = None,
    reset_required: bool = False,
    recovery_action: str | None = None,
    uncorrected_ecc: int | None = None,
    row_remap_failed: bool | None = None,
) -> str | None:
    """The reason why the GPU of that index must not be given work, or None.

    `error_word` is what the driver answered in place of the GPU's identity or memory (`[Unknown Error]`),
    `recovery_action` what it recommends (`None`, `Reset`, `Reboot`, `Drain P2P`, `Drain and Reset`),
    `uncorrected_ecc` the uncorrectable memory errors since the driver was loaded. Source: nvidia-smi(1).
    """
    action = (recovery_action or "").strip()
    if action.lower() in ("none", ""):
        action = ""
    if error_word:
        return f"the driver answers {error_word} for it; look at dmesg for Xid errors, then reset or reboot"
    if reset_required and not action:
        action = "Reset"
    if action:
        how = "reboot this node" if action.lower() == "reboot" else f"stop what runs on it and {reset_of(index)}"
        return f"the driver asks for a recovery action: {action}; {how}"
    if uncorrected_ecc:
        errors = "error" if uncorrected_ecc == 1 else "errors"
        return (
            f"it has had {uncorrected_ecc} uncorrectable memory {errors} (ECC) since the driver was loaded; "
            f"{reset_of(index)}, and have it replaced when they come back"
        )
    if row_remap_failed:
        return "its memory has no spare rows left (row remapping failed); have it replaced"
    return None


def reset_of(index: int) -> str:
    """What to type. Without an index nvidia-smi resets every GPU of the node, and what runs there ends."""
    return f"reset it with nvidia-smi -i {index} --gpu-reset"


# nvmlClocksEventReason* of nvml.h: SwPowerCap and HwPowerBrakeSlowdown; SwThermalSlowdown and HwThermalSlowdown;
# HwSlowdown. Idle, set by the user, and synchronised with others are no trouble.
_THROTTLE_BITS = {"power": 0x04 | 0x80, "thermal": 0x20 | 0x40, "hardware": 0x08}


def throttle_reasons(bits: int | None) -> list[str] | None:
    """What holds the clocks down, of the driver's bits: words of THROTTLE_REASONS; None for None."""
    if bits is None:
        return None
    return [reason for reason in THROTTLE_REASONS if bits & _THROTTLE_BITS[reason]]
