"""Files of releases that are made in a moment: what they hold is a program of two lines, or a small wheel."""

from __future__ import annotations

import base64
import hashlib
import io
import platform
import sys
import tarfile
import zipfile
from pathlib import Path

from llmgw.release.files import Kind, name_of

MACHINE = platform.machine()
PYTHON = f"cp3{sys.version_info[1]}"
PROGRAM = "#!/bin/sh\necho llmgw {version}\n"


def sha256(path: Path) -> str:
    """The digest that install.sh is given."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def folder_tarball(
    folder: Path,
    version: str = "1.2.3",
    *,
    program: str = PROGRAM,
    glibc: str = "2.17",
    machine: str = MACHINE,
    files: dict[str, bytes] | None = None,
    modes: dict[str, int] | None = None,
) -> Path:
    """A folder's tarball below `folder`, whose bin/llmgw is `program`.

    `files` go into it too, and empty ones with these `modes`.
    """
    path = folder / name_of(Kind.FOLDER, version, machine)
    top = path.name.removesuffix(".tar.gz")
    with tarfile.open(path, "w:gz") as tarball:
        build = f"version: {version}\nmachine: {machine}\nglibc: {glibc}\n"
        _add(tarball, f"{top}/BUILD", build.encode())
        _add(tarball, f"{top}/bin/llmgw", program.format(version=version).encode(), 0o755)
        for name, content in (files or {}).items():
            _add(tarball, f"{top}/{name}", content)
        for name, mode in (modes or {}).items():
            _add(tarball, f"{top}/{name}", b"", mode)
    return path


def wheel(folder: Path, version: str = "1.2.3") -> Path:
    """A wheel named llmgw with one module and the program."""
    path = folder / name_of(Kind.WHEEL, version)
    info = f"llmgw-{version}.dist-info"
    files = {
        "llmgw.py": f"def main():\n    print('llmgw {version}')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: llmgw\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nllmgw = llmgw:main\n",
    }
    record = "".join(f"{name},sha256={_record(text)},{len(text)}\n" for name, text in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (files | {f"{info}/RECORD": record + f"{info}/RECORD,,\n"}).items():
            archive.writestr(name, text)
    return path


def wheels_tarball(folder: Path, version: str = "1.2.3", *, python: str = PYTHON) -> Path:
    """The tarball of that wheel alone: it depends on nothing."""
    path = folder / name_of(Kind.WHEELS, version, MACHINE, python)
    one = wheel(folder, version)
    with tarfile.open(path, "w:gz") as tarball:
        _add(tarball, f"{path.name.removesuffix('.tar.gz')}/{one.name}", one.read_bytes())
    return path


def _record(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def _add(tarball: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    tarball.addfile(member, io.BytesIO(content))
