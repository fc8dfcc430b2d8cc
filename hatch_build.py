"""Writes the commit into what is built: `llmgw --version` names it, and a release can be traced to its source."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = "llmgw/_commit"
SOURCES = ("llmgw", "migrations", "examples", "building", "pyproject.toml", "hatch_build.py")


class CommitHook(BuildHookInterface[Any]):
    """Adds the file to source distributions and wheels; a wheel made from a source distribution has it there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or (root / PLACE).exists():
            return
        commit = commit_of(root)
        if commit is None:
            return
        with tempfile.NamedTemporaryFile("w", suffix="-commit", delete=False) as file:
            file.write(commit + "\n")
        self._made = Path(file.name)
        build_data["force_include"][file.name] = PLACE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        made = getattr(self, "_made", None)
        if made is not None:
            made.unlink(missing_ok=True)


def commit_of(root: Path) -> str | None:
    """The commit that is checked out, and whether files differ from it; None outside of a checkout."""
    try:
        top = _git(root, "rev-parse", "--show-toplevel")
        if Path(top).resolve() != root.resolve():
            return None
        changed = ", changed" if _git(root, "status", "--porcelain", "--", *SOURCES) else ""
        return _git(root, "rev-parse", "--short=12", "HEAD") + changed
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
