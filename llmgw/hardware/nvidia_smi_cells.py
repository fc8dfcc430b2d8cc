"""One row of nvidia-smi's CSV as a GPU: what the cells' words mean. Pure; unknown is None, never 0."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from llmgw.hardware.gpu_health import throttle_reasons, why_unusable
from llmgw.messages.agent import Gpu

SHOWN_CHARS = 160
UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/_-]{8,90}")
UNKNOWN = re.compile(r"\[[^\]]*\]|n/?a|err!|unknown error|not supported|-|", re.IGNORECASE)
ERROR_WORD = re.compile(r"\[?(unknown error|gpu is lost|err!)\]?", re.IGNORECASE)
# What a driver answers for the memory of a GPU that has none of its own.
_NO_MEMORY_WORD = re.compile(r"\[?(n/?a|not supported)\]?", re.IGNORECASE)
RESET_WORD = re.compile(r"\[?gpu requires reset\]?", re.IGNORECASE)


def describe_row(values: Mapping[str, str], *, position: int, asked: Sequence[str]) -> Gpu | None:
    """One row as a GPU; None when its index was asked for and is none."""
    index = _number(values.get("index"), maximum=9999)
    if index is None:
        if "index" in asked:
            return None
        index = position
    uuid = _text(values.get("uuid"))
    if uuid is not None and not UUID.fullmatch(uuid):
        uuid = None
    error_words = (
        shown(values[name])
        for name in ("uuid", "name", "memory.total", "memory.used")
        if ERROR_WORD.fullmatch(values.get(name, ""))
    )
    reset_required = any(RESET_WORD.fullmatch(value) for value in values.values())
    mig = (_text(values.get("mig.mode.current")) or "").lower()
    uncorrected = _number(values.get("ecc.errors.uncorrected.volatile.total"))
    gpu = Gpu(
        index=index,
        uuid=uuid or "",
        name=_text(values.get("name")) or "unknown",
        memory_total_mib=_number(values.get("memory.total")),
        # A GPU that needs a reset says 0 MiB used: reading it as idle is the trap.
        memory_used_mib=None if reset_required else _number(values.get("memory.used")),
        utilization_percent=_number(values.get("utilization.gpu"), maximum=100),
        temperature_c=_number(values.get("temperature.gpu"), maximum=1000),
        pci_bus_id=_text(values.get("pci.bus_id")),
        driver_version=_text(values.get("driver_version")),
        power_w=_watts(values.get("power.draw")),
        power_limit_w=_watts(values.get("power.limit")),
        corrected_ecc=_number(values.get("ecc.errors.corrected.volatile.total")),
        uncorrected_ecc=uncorrected,
        throttled=throttle_reasons(_bits(values.get("clocks_event_reasons.active"))),
        unified_memory=bool(_NO_MEMORY_WORD.fullmatch(values.get("memory.total", ""))),
        mig={"enabled": True, "disabled": False}.get(mig),
    )
    remap = (_text(values.get("remapped_rows.failure")) or "").lower()
    reason = why_unusable(
        gpu.index,
        error_word=next(error_words, None),
        reset_required=reset_required,
        recovery_action=_text(values.get("gpu_recovery_action")),
        uncorrected_ecc=uncorrected,
        row_remap_failed=remap in ("yes", "1"),
    )
    if reason is None and "uuid" in asked and uuid is None:
        reason = "its UUID cannot be read, and a shard is given its GPUs by UUID; run nvidia-smi -L"
    return refuse(gpu, reason) if reason else gpu


def refuse(gpu: Gpu, reason: str, kind: str = "broken") -> Gpu:
    """The same GPU, not usable for `reason`; `kind` as in `Gpu.unusable_kind`."""
    return msgspec.structs.replace(gpu, usable=False, reason=reason, unusable_kind=kind)


def _text(cell: str | None) -> str | None:
    if cell is None or UNKNOWN.fullmatch(cell.strip()) or RESET_WORD.fullmatch(cell.strip()):
        return None
    return shown(cell.strip())


def _number(cell: str | None, maximum: int = 2**40) -> int | None:
    """`81559 MiB`, `81559`, `0 %`, `35.7` → a whole number; everything else, negative ones too, is None."""
    match = re.fullmatch(r"([0-9]{1,15})(\.[0-9]{1,9})?( ?(MiB|MB|%|C|W))?", (cell or "").strip())
    if match is None:
        return None
    value = round(float(match[1] + (match[2] or "")))
    return value if value <= maximum else None


def _watts(cell: str | None) -> float | None:
    """`66.32 W` → 66.32."""
    match = re.fullmatch(r"([0-9]{1,5}(\.[0-9]{1,3})?)( ?W)?", (cell or "").strip())
    return float(match[1]) if match is not None else None


def _bits(cell: str | None) -> int | None:
    """`0x0000000000000004` → 4."""
    match = re.fullmatch(r"0x([0-9A-Fa-f]{1,16})", (cell or "").strip())
    return int(match[1], 16) if match is not None else None


def shown(text: str) -> str:
    """Foreign text made fit to be quoted: one line, printable, short."""
    clean = "".join(char if char.isprintable() else " " for char in text).strip()
    return clean if len(clean) <= SHOWN_CHARS else clean[: SHOWN_CHARS - 1] + "…"
