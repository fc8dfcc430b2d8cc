"""The shell scripts of this room, ready to be sent: POSIX sh, run as root on a node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llmgw.onboarding.ssh import SMALL_FILES, Script

NAMES = {
    "probe": "looking at the machine",
    "identity": "installing the identity",
    "program": "installing the program",
    "settings": "installing the configuration and the unit",
    "start": "starting the agent",
    "journal": "reading the agent's log",
    "doctor": "running llmgw doctor",
}
_HERE = Path(__file__).parent


def script(name: str, files: Mapping[str, bytes | Path] | None = None, *, base: str = SMALL_FILES) -> Script:
    """A script by its name in `NAMES`, with the files it wants beside it."""
    text = (_HERE / f"{name}.sh").read_text()
    return Script(NAMES[name], text, {"lib.sh": (_HERE / "lib.sh").read_bytes(), **(files or {})}, base)


def changes(said: str) -> tuple[list[str], list[str]]:
    """(what was changed, notes) of what a script printed."""
    lines = said.splitlines()
    return (
        [line.removeprefix("changed ") for line in lines if line.startswith("changed ")],
        [line.removeprefix("note ") for line in lines if line.startswith("note ")],
    )
