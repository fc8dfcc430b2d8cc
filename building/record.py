"""What all files of one build have in common, and the record of it that lies in each (the file BUILD)."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Made:
    """`out` gets the files, `work` is scratch; `made_at`: seconds since the epoch, the commit's own time."""

    root: Path
    out: Path
    work: Path
    version: str
    commit: str
    made_at: float
    machine: str = platform.machine()

    def record(self, glibc: str) -> str:
        """The text of BUILD: install.sh reads `glibc` from it before it runs anything."""
        return (
            f"version: {self.version}\ncommit: {self.commit}\nmachine: {self.machine}\nglibc: {glibc}\n"
            f"python: {platform.python_version()}\n"
        )
