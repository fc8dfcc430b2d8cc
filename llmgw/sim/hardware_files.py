"""The folder of a simulated node's hardware: whose it is, and how its files change while they are read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from llmgw.config.errors import SentenceError

MARKER = "llmgw-sim-hardware.json"
_STAGING = ".staging"
_OFF = "powered-off"


class HardwareError(SentenceError):
    """Simulated hardware cannot be written or changed; the message is a sentence with the remedy."""


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulated node was made from, kept in its folder so that it can be changed later."""

    node: str
    folder: str
    """Tells this machine from another one of the same name, whose GPUs are others."""
    gpus: int
    adapters: int
    rate_gbps: float
    gpu_name: str
    memory_mib: int
    link_layer: str
    sm_lid: int
    driver_version: str
    nvlink: Literal["switch", "pairs", "none"] = "switch"
    """How the GPUs are joined."""
    unified_memory: bool = False
    """The GPUs have no memory of their own, as on a GB10."""


def claim_folder(directory: Path) -> None:
    """Make `directory` ours. Raises HardwareError when it holds something else or cannot be written."""
    try:
        if directory.exists() and not directory.is_dir():
            raise HardwareError(f"{directory} is a file; name a folder")
        if directory.is_dir() and not (directory / MARKER).exists() and any(directory.iterdir()):
            raise HardwareError(
                f"{directory} holds other files and is not simulated hardware (it has no {MARKER}); "
                "name an empty or a new folder"
            )
        (directory / _STAGING).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HardwareError(f"{directory} cannot be written: {error.strerror}; name another folder") from None


def save_parameters(directory: Path, parameters: Parameters) -> None:
    """Write the marker."""
    write_file(directory, MARKER, msgspec.json.format(msgspec.json.encode(parameters)).decode() + "\n")


def load_parameters(directory: Path) -> Parameters:
    """What the node in `directory` was made from. Raises HardwareError when there is none."""
    try:
        return msgspec.json.decode((directory / MARKER).read_bytes(), type=Parameters)
    except FileNotFoundError:
        raise HardwareError(
            f"{directory} is not simulated hardware (it has no {MARKER}); make it with: "
            f"llmgw sim hardware {directory}"
        ) from None
    except OSError as error:
        raise HardwareError(f"{directory / MARKER} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise HardwareError(
            f"{directory / MARKER} is damaged ({error}); remove {directory} and make it again"
        ) from None


def write_file(directory: Path, relative: str, text: str, *, mode: int = 0o644) -> None:
    """Replace a file as a whole: a reader finds the old text or the new one, never a part or nothing.

    The new text is staged outside the folders that are listed by readers.
    """
    target = directory / relative
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, staged = tempfile.mkstemp(dir=directory / _STAGING)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(staged, mode)
            os.replace(staged, target)
        except BaseException:
            os.unlink(staged)
            raise
    except OSError as error:
        raise HardwareError(f"{target} cannot be written: {error.strerror}") from None


def write_link(directory: Path, relative: str, to: str) -> None:
    """Make `relative` a symbolic link to `to`, replacing what was there at once."""
    target = directory / relative
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = directory / _STAGING / f"link-{os.getpid()}-{target.name}"
        staged.unlink(missing_ok=True)
        staged.symlink_to(to)
        os.replace(staged, target)
    except OSError as error:
        raise HardwareError(f"{target} cannot be written: {error.strerror}") from None


def is_powered_off(directory: Path) -> bool:
    """Whether the node's power was cut: its ports have no light then, whatever the files say."""
    return (directory / _OFF).exists()


def set_power(directory: Path, on: bool) -> None:
    """Cut the power of a simulated node, or give it back. Raises HardwareError."""
    if on:
        try:
            (directory / _OFF).unlink(missing_ok=True)
        except OSError as error:
            raise HardwareError(f"{directory / _OFF} cannot be removed: {error.strerror}") from None
    else:
        write_file(directory, _OFF, "")
