"""The files of a release, told apart by their names.

| file | what it is |
| --- | --- |
| `llmgw-1.2.3-py3-none-any.whl` | the wheel alone: its dependencies come from an index |
| `llmgw-1.2.3-wheels-cp311-x86_64.tar.gz` | with all it depends on, for one Python and machine: no index |
| `llmgw-1.2.3-linux-x86_64.tar.gz` | a folder that holds its own Python: needs glibc and nothing else |
| `llmgw-1.2.3-linux-x86_64` | the same in one file |

Each has `FILE.sig` beside it when it was signed (see signature.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from llmgw.config.errors import SentenceError


class ReleaseError(SentenceError):
    """A file of a release cannot be used: which, why, and what to do."""


class Kind(StrEnum):
    WHEEL = "wheel"
    WHEELS = "wheels"
    FOLDER = "folder"
    SINGLE = "single"


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """What a name says. `machine` is `uname -m`'s word and `python` a tag such as cp311; None means any."""

    name: str
    kind: Kind
    version: str
    machine: str | None = None
    python: str | None = None


_VERSION = r"(?P<version>[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc)[0-9]+)?(?:\.(?:post|dev)[0-9]+)*)"
_MACHINE = r"(?P<machine>x86_64|aarch64)"
_NAMES = {
    Kind.WHEEL: re.compile(rf"llmgw-{_VERSION}-py3-none-any\.whl"),
    Kind.WHEELS: re.compile(rf"llmgw-{_VERSION}-wheels-(?P<python>cp3[0-9]{{1,2}})-{_MACHINE}\.tar\.gz"),
    Kind.FOLDER: re.compile(rf"llmgw-{_VERSION}-linux-{_MACHINE}\.tar\.gz"),
    Kind.SINGLE: re.compile(rf"llmgw-{_VERSION}-linux-{_MACHINE}"),
}


def name_of(kind: Kind, version: str, machine: str = "", python: str = "") -> str:
    """The file's name. `machine` is `uname -m`'s word; `python` is wanted for WHEELS alone."""
    return {
        Kind.WHEEL: f"llmgw-{version}-py3-none-any.whl",
        Kind.WHEELS: f"llmgw-{version}-wheels-{python}-{machine}.tar.gz",
        Kind.FOLDER: f"llmgw-{version}-linux-{machine}.tar.gz",
        Kind.SINGLE: f"llmgw-{version}-linux-{machine}",
    }[kind]


def read_name(name: str) -> ReleaseFile:
    """What a file's name (without folders) says. Raises ReleaseError for one that no release has."""
    for kind, pattern in _NAMES.items():
        if found := pattern.fullmatch(name):
            parts = found.groupdict()
            return ReleaseFile(name, kind, parts["version"], parts.get("machine"), parts.get("python"))
    raise ReleaseError(
        f"{name!r} is no file of a release, which is called like {name_of(Kind.SINGLE, '1.2.3', 'x86_64')}, "
        f"{name_of(Kind.FOLDER, '1.2.3', 'x86_64')}, {name_of(Kind.WHEELS, '1.2.3', 'x86_64', 'cp311')} or "
        f"{name_of(Kind.WHEEL, '1.2.3')}. Keep the name that it was released under."
    )
