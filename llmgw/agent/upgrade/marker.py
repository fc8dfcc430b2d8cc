"""What an agent that switches to another program leaves behind: for the new one, and for the way back.

A file of `key=value` lines, so that a shell can read it too (llmgw/release/settle.sh), which counts starts in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import structlog

from llmgw.messages.upgrade import SENTENCE_CHARS_MAX

log = structlog.get_logger("agent")

NAME = "marker"
_OUTCOMES = ("trial", "settled", "back")


@dataclass(frozen=True, kw_only=True)
class Marker:
    """An upgrade that has been switched to. Paths are absolute; `old` is where the program's symlink pointed."""

    upgrade_id: str
    sha256: str
    version: str
    program: str
    old: str
    new: str
    outcome: Literal["trial", "settled", "back"] = "trial"
    tries: int = 0
    """Starts of the new program that settle.sh has counted."""
    first_try: int = 0
    """When the first of them was, in seconds since the epoch."""
    reason: str = ""


def read_marker(folder: Path) -> Marker | None:
    """The marker of a folder; None when there is none, or none that can be read."""
    try:
        lines = (folder / NAME).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        log.error("the marker of the last upgrade cannot be read", folder=str(folder), error=str(error))
        return None
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    try:
        marker = Marker(
            **{
                field.name: int(values[field.name])
                if field.name in ("tries", "first_try")
                else values[field.name]
                for field in fields(Marker)
            }  # type: ignore[arg-type]
        )
    except (KeyError, ValueError):
        log.error("the marker of the last upgrade is not whole", folder=str(folder))
        return None
    if marker.outcome not in _OUTCOMES:
        log.error("the marker of the last upgrade says nothing known", outcome=marker.outcome)
        return None
    return marker


def write_marker(folder: Path, marker: Marker) -> None:
    """Put it there whole, or not at all. Raises OSError."""
    marker = replace(marker, reason=marker.reason[:SENTENCE_CHARS_MAX])
    lines = {field.name: " ".join(str(getattr(marker, field.name)).split()) for field in fields(Marker)}
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    write_whole(folder / NAME, text)


def write_whole(path: Path, text: str) -> None:
    """A file (0600) that has this text, also when the power is cut right after. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    # What follows it (the program's symlink) may lie on another disk, and must not be there first.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_marker(folder: Path) -> None:
    """There was no upgrade. Raises OSError."""
    (folder / NAME).unlink(missing_ok=True)


def is_new(marker: Marker) -> bool:
    """True while the program is the one that was switched to."""
    try:
        return os.readlink(marker.program) == f"{marker.new}/bin/llmgw"
    except OSError:
        return False


def point_back(marker: Marker) -> None:
    """Have the program be the one from before again. Raises OSError, also when that one is not there any more."""
    before = os.path.join(os.path.dirname(marker.program), marker.old)
    if not os.access(before, os.X_OK):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), before)
    beside = f"{marker.program}.back"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    os.symlink(marker.old, beside)
    os.replace(beside, marker.program)
