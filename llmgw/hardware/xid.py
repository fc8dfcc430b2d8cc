"""Xid errors: what the NVIDIA driver writes to the kernel's log about a GPU, and which of them condemn it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmgw.hardware.nvidia_smi_cells import refuse
from llmgw.hardware.pci import pci_address
from llmgw.messages.agent import XIDS_PER_GPU_MAX, Gpu
from llmgw.messages.findings import Finding

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})[^)]*\): (\d{1,4}),?\s*(.*)", re.IGNORECASE
)
_LOADING = re.compile(r"NVRM: loading NVIDIA UNIX")
_ACTION = re.compile(r"recovery action changed from .*? to 0x[0-9a-f]+ \(([^)]{1,60})\)", re.IGNORECASE)
_ACTION_CHANGED = 154
# After which the GPU does no more work until it is reset (docs.nvidia.com/deploy/xid-errors).
FATAL = {
    48: "uncorrectable memory error",
    62: "its power controller halted",
    64: "row remapping failed",
    79: "it has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
    140: "unrecovered memory error",
    143: "it could not be initialised",
}
# After which the GPU goes on, and somebody should look at it (the same page, by its recommended actions).
WARNED = {
    63: ("a row of its memory waits to be remapped", "drain the node when it suits, and reset the GPU"),
    74: ("an NVLink of it failed", "look at nvidia-smi nvlink -e; when it comes back, have the board looked at"),
    94: ("memory error, contained: what used it has died", "drain the node when it suits, and reset the GPU"),
}
_DEVICES_MAX = 64
_CHUNK_BYTES = 8192
_READ_BYTES_MAX = 16 * 1024 * 1024
_TEXT_CHARS = 120


Counts = dict[str, dict[int, int]]
"""PCI device (`0000:1b:00`) → Xid → how often."""


@dataclass(frozen=True)
class Xid:
    """One Xid that condemns a GPU: `why` says what it means."""

    code: int
    why: str


class XidLog:
    """Follows the kernel's log and knows which GPUs are condemned. Reading blocks for a moment at most."""

    def __init__(self, path: Path) -> None:
        """`path` is /dev/kmsg, or a file with such lines."""
        self._path = path
        self._descriptor: int | None = None
        self._offset = 0
        self._rest = ""
        self._condemned: dict[str, Xid] = {}
        self._counts: Counts = {}

    def condemned(self) -> dict[str, Xid]:
        """PCI device (`0000:1b:00`) → the last fatal Xid since the driver was loaded. Nothing when the log cannot
        be read, which takes root on most machines.
        """
        for line in self._new_lines():
            note(self._condemned, line)
            count(self._counts, line)
        return dict(self._condemned)

    def counts(self) -> Counts | None:
        """PCI device → Xid → how often the log had it, as of the last look; None when it cannot be read."""
        if self._descriptor is None:
            return None
        return {device: dict(codes) for device, codes in self._counts.items()}

    def _new_lines(self) -> list[str]:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            state = os.fstat(self._descriptor)
        except OSError:
            return []
        if stat.S_ISREG(state.st_mode):
            return self._lines_of_file()
        return self._lines_of_device(self._descriptor) if stat.S_ISCHR(state.st_mode) else []

    def _lines_of_file(self) -> list[str]:
        """What was appended; everything when the file was replaced or cut."""
        try:
            data = self._path.read_bytes()[-_READ_BYTES_MAX:]
        except OSError:
            return []
        if len(data) < self._offset:
            self._offset = 0
            self._condemned.clear()
            self._counts.clear()
        new, self._offset = data[self._offset :], len(data)
        return new.decode("utf-8", "replace").splitlines()

    def _lines_of_device(self, descriptor: int) -> list[str]:
        """The records since the last look: each read gives one (kernel, Documentation/ABI/testing/dev-kmsg)."""
        lines: list[str] = []
        total = 0
        while total < _READ_BYTES_MAX:
            try:
                record = os.read(descriptor, _CHUNK_BYTES)
            except BrokenPipeError:
                continue  # records were overwritten before we read them; the next read goes on behind
            except OSError:
                break
            if not record:
                break
            total += len(record)
            lines.append(record.decode("utf-8", "replace").partition("\n")[0])
        return lines

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def note(condemned: dict[str, Xid], line: str) -> None:
    """Take one line of the kernel's log into account."""
    if _LOADING.search(line):
        condemned.clear()
        return
    match = _XID.search(line)
    if match is None:
        return
    device, code = _device(match), int(match[4])
    if code == _ACTION_CHANGED:
        action = _ACTION.search(match[5])
        if action is not None and action[1].lower() == "none":
            condemned.pop(device, None)
        elif action is not None:
            condemned.setdefault(device, Xid(code, f"the driver asks for {action[1][:_TEXT_CHARS]}"))
    elif code in FATAL:
        condemned[device] = Xid(code, FATAL[code])


def count(counts: Counts, line: str) -> None:
    """Count the Xid of one line of the kernel's log, if it has one; what is beyond the bounds is not counted."""
    if _LOADING.search(line):
        counts.clear()
        return
    match = _XID.search(line)
    if match is None or (_device(match) not in counts and len(counts) >= _DEVICES_MAX):
        return
    codes = counts.setdefault(_device(match), {})
    code = int(match[4])
    if code in codes or len(codes) < XIDS_PER_GPU_MAX:
        codes[code] = codes.get(code, 0) + 1


def with_xids(gpus: Sequence[Gpu], counts: Counts | None) -> list[Gpu]:
    """The same GPUs, each with its Xids; unknown where the log cannot be read, or the GPU has no bus id."""
    if counts is None:
        return list(gpus)
    return [
        msgspec.structs.replace(gpu, xids=counts.get(device, {})) if (device := _device_of(gpu)) else gpu
        for gpu in gpus
    ]


def xid_findings(gpus: Sequence[Gpu]) -> list[Finding]:
    """A finding for each GPU that goes on after an Xid that somebody should look at."""
    found = []
    for gpu in gpus:
        for code in sorted((gpu.xids or {}).keys() & WARNED.keys() if gpu.usable else ()):
            what, remedy = WARNED[code]
            times = (gpu.xids or {})[code]
            often = "once" if times == 1 else f"{times} times"
            found.append(
                Finding(
                    check="gpu-xid",
                    severity="warning",
                    where=f"GPU {gpu.index}",
                    what=f"the kernel's log has Xid {code} for GPU {gpu.index} {often}: {what}",
                    why="It works, and may not for long",
                    remedy=f"{remedy} (nvidia-smi -i {gpu.index} --gpu-reset)" if "reset" in remedy else remedy,
                )
            )
    return found


def condemn(gpus: Sequence[Gpu], condemned: Mapping[str, Xid]) -> list[Gpu]:
    """The same GPUs, those with a fatal Xid not usable."""
    told: list[Gpu] = []
    for gpu in gpus:
        xid = condemned.get(_device_of(gpu))
        if xid is not None and gpu.usable:
            gpu = refuse(
                gpu,
                f"the kernel's log has Xid {xid.code} for it ({xid.why}); stop what runs on it, reset it "
                f"(nvidia-smi -i {gpu.index} --gpu-reset) and load the driver again, or reboot",
            )
        told.append(gpu)
    return told


def _device(match: re.Match[str]) -> str:
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}".lower()


def _device_of(gpu: Gpu) -> str:
    """The GPU's PCI device, empty when it is not known."""
    return (pci_address(gpu.pci_bus_id) or "").rpartition(".")[0]
