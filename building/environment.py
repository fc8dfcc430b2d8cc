"""The environment that is frozen: llmgw's wheel, what it depends on, and PyInstaller, in a venv of their own.

It is kept below build/ and made again when pyproject.toml or the Python changes.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from building.problem import run_logged

TOOLS = ("pip", "setuptools", "wheel")
"""What a venv brings, and no release holds."""
_HINT = "it needs a package index; pip's configuration or PIP_INDEX_URL names another"


@dataclass(frozen=True)
class Environment:
    """A venv below `folder`; `names` are the distributions that a release consists of, llmgw among them."""

    folder: Path
    names: tuple[str, ...]

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def distribution(self, name: str) -> Distribution:
        """One of what is installed. Raises StopIteration when it is not."""
        return next(iter(distributions(name=name, path=[str(site_packages(self.folder))])))

    def released(self) -> list[Distribution]:
        """What a release consists of, by name."""
        return [self.distribution(name) for name in self.names]


def site_packages(folder: Path) -> Path:
    """Where a venv of this Python keeps packages."""
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def make_environment(root: Path, work: Path, wheel: Path) -> Environment:
    """The environment with `wheel` installed. Raises BuildError."""
    folder = work / f"env-cp{sys.version_info[0]}{sys.version_info[1]}"
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    tools = project["optional-dependencies"]["build"]
    wanted = hashlib.sha256(repr([project["dependencies"], tools, sys.version]).encode()).hexdigest()
    stamp, listed = folder / "made-of", folder / "released"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        run_logged(
            [sys.executable, "-m", "venv", str(folder)],
            work / "venv.log",
            f"{sys.executable} could not make a virtual environment; on Debian: apt-get install python3-venv",
        )
        _pip(folder, work, *project["dependencies"])
        found = {one.name for one in distributions(path=[str(site_packages(folder))])} - set(TOOLS)
        listed.write_text("\n".join(sorted({*found, "llmgw"}, key=str.lower)))
        _pip(folder, work, *tools)
        stamp.write_text(wanted)
    _pip(folder, work, "--force-reinstall", "--no-deps", str(wheel))
    return Environment(folder, tuple(listed.read_text().split()))


def _pip(folder: Path, work: Path, *arguments: str) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    run_logged(command, work / "pip.log", f"pip could not install what the build needs; {_HINT}")
