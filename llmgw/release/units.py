"""The unit files of systemd, as they lie in `examples/` of a checkout, in the wheel, and in a frozen program."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from llmgw.release.files import ReleaseError
from llmgw.release.layout import AGENT_UNIT, ROUTER_SOCKET, ROUTER_UNIT, SERVER_UNIT

UNIT_NAMES: Final = (AGENT_UNIT, SERVER_UNIT, ROUTER_UNIT, ROUTER_SOCKET)


def unit_text(name: str) -> str:
    """The text of one of UNIT_NAMES. Raises ReleaseError when this installation lacks it."""
    if name not in UNIT_NAMES:
        raise ReleaseError(f"{name!r} is no unit of llmgw, whose units are {', '.join(UNIT_NAMES)}.")
    folders = list(example_folders())
    for folder in folders:
        try:
            return (folder / name).read_text(encoding="utf-8")
        except OSError:
            continue
    raise ReleaseError(
        f"This installation of llmgw lacks its unit file {name} (looked for in "
        f"{' and '.join(map(str, folders))}); install llmgw again."
    )


def example_folders() -> Iterable[Path]:
    """Where `examples/` may lie; a frozen program has its data below `sys._MEIPASS` (PyInstaller's manual)."""
    package = Path(__file__).resolve().parent.parent
    unpacked = getattr(sys, "_MEIPASS", None)
    if isinstance(unpacked, str):
        yield Path(unpacked) / "llmgw" / "_examples"
    yield package / "_examples"
    if unpacked is None:
        yield package.parent / "examples"
