"""What else than Python packages is inside a build with its own Python, and whose it is."""

from __future__ import annotations

import ast
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from building.environment import Environment

_MISSING = "as its own text says"


@dataclass(frozen=True)
class Part:
    """One component of a release. `kind` is a package URL's type (pypi, deb, rpm, generic)."""

    kind: str
    name: str
    version: str
    licence: str
    files: tuple[Path, ...] = ()
    """Texts of its licence, as they lie on the machine that builds."""
    needs: tuple[str, ...] = ()
    """Names of other components, as it states them."""
    namespace: str = field(default="")

    @property
    def purl(self) -> str:
        """Its package URL (https://github.com/package-url/purl-spec)."""
        middle = f"{self.namespace}/" if self.namespace else ""
        name = self.name.lower().replace("_", "-") if self.kind == "pypi" else self.name
        return f"pkg:{self.kind}/{middle}{name}@{quote(self.version, safe='.-_~')}"


def python_part() -> Part:
    """The interpreter that builds, which is the one inside."""
    places = [Path(sysconfig.get_path("stdlib")) / "LICENSE.txt", Path(sys.base_prefix) / "LICENSE.txt"]
    found = tuple(place for place in places if place.is_file())[:1]
    return Part("generic", "python", platform.python_version(), "PSF-2.0", found)


def bootloader_part(environment: Environment) -> Part:
    """PyInstaller's bootloader, the only part of it that is inside."""
    tool = environment.distribution("pyinstaller")
    texts = [Path(str(file.locate())) for file in tool.files or () if file.name.startswith("COPYING")]
    licence = "GPL-2.0-or-later WITH Bootloader-exception"
    return Part("pypi", "pyinstaller", tool.version, licence, tuple(texts))


def library_parts(table: Path, environment: Environment) -> list[Part]:
    """The shared libraries of the machine that builds, by the table (COLLECT-00.toc) of what PyInstaller took."""
    own = (str(environment.folder), sys.base_prefix)
    parts = {}
    for source in _sources(table):
        if source.startswith(own) or str(Path(source).resolve()).startswith(own):
            continue
        part = _packaged(Path(source)) or Part("generic", Path(source).name, "unknown", _MISSING)
        parts[part.name] = part
    return [parts[name] for name in sorted(parts)]


def _sources(table: Path) -> list[str]:
    read = ast.literal_eval(table.read_text())
    entries = next(one for one in read if isinstance(one, list))
    return sorted({entry[1] for entry in entries if entry[2] in ("BINARY", "EXTENSION")})


def _packaged(path: Path) -> Part | None:
    """The system's package that a library belongs to; None where no package manager knows."""
    real = path.resolve()
    if shutil.which("dpkg-query"):
        # What is installed below /usr/lib may be registered as below /lib, and the other way round.
        for place in (real, Path(str(real).removeprefix("/usr")), Path(f"/usr{real}")):
            owner = _said("dpkg-query", "-S", str(place)).partition(":")[0]
            if owner:
                version = _said("dpkg-query", "-W", "-f=${Version}", owner).strip()
                text = Path("/usr/share/doc") / owner / "copyright"
                texts = tuple(one for one in [text] if one.is_file())
                return Part("deb", owner, version, _MISSING, texts, namespace="debian")
    if shutil.which("rpm"):
        said = _said("rpm", "-qf", "--qf", r"%{NAME}\t%{VERSION}-%{RELEASE}\t%{LICENSE}\n", str(real))
        if said.count("\t") >= 2:
            name, version, licence = said.splitlines()[0].split("\t")
            folder = Path("/usr/share/licenses") / name
            texts = tuple(sorted(file for file in folder.glob("*") if file.is_file()))
            return Part("rpm", name, version, licence, texts)
    return None


def _said(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""
