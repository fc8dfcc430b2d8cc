"""Gives nodes of a test an `ib_write_bw` of the tests' own, tells it what goes wrong, and finds what is left."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import psutil

PROGRAM = Path(__file__).parent / "perftest_program.py"


class Perftest:
    """One node's program, in a folder of its own."""

    def __init__(self, folder: Path, ib_root: Path, **settings: Any) -> None:
        """`settings`: `time` is how much of a test's seconds passes, `unit` of those without --report_gbits."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / "ib_write_bw"
        (folder / "perftest.json").write_text(json.dumps({"ib_root": str(ib_root), **settings}))
        # Without `site`: it starts in a fraction of the time.
        self.path.write_text(f"#!{sys.executable} -ES\n{PROGRAM.read_text()}")
        self.path.chmod(0o755)

    def faults(self, **of: dict[str, Any]) -> None:
        """Adapter (`any` for all of them) → what goes wrong from the next run on; nothing: all is well again."""
        told = {"*" if name == "any" else name: what for name, what in of.items()}
        (self.folder / "faults.json").write_text(json.dumps(told))

    def calls(self) -> list[list[str]]:
        """(role, pid, words of the command line …) of every run so far."""
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in (self.folder / "perftest.calls").read_text().splitlines()]
        return []

    def running(self) -> list[int]:
        """Pids of its processes that live."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(self.path) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found
