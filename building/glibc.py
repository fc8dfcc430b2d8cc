"""The oldest glibc that programs and libraries can run with: the newest version of a symbol that they ask for."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

ELF = b"\x7fELF"
# Names of symbol versions, as they stand in .dynstr: each ends with a zero byte.
_VERSION = re.compile(rb"\0GLIBC_2\.([0-9]{1,3})(?:\.[0-9]+)?(?=\0)")
# Packed relative relocations, which the loader of glibc 2.36 was the first to know.
_PACKED = b"\0GLIBC_ABI_DT_RELR\0"
_PACKED_SINCE = 36
_LEAST = 17


def needed_glibc(contents: Iterable[bytes]) -> str:
    """Such as `2.28`, over files of which those that are no ELF count for nothing; at least 2.17."""
    minor = _LEAST
    for content in contents:
        if content.startswith(ELF):
            minor = max([minor, *(int(found) for found in _VERSION.findall(content))])
            if _PACKED in content:
                minor = max(minor, _PACKED_SINCE)
    return f"2.{minor}"


def files_below(folder: Path) -> Iterable[bytes]:
    """The content of each file, links left out."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path.read_bytes()


def files_in_wheels(folder: Path) -> Iterable[bytes]:
    """The content of each file in each wheel of a folder."""
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                yield archive.read(name)
