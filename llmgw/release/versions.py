"""Versions of releases: which is the older one, and which understand each other."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmgw.release.files import ReleaseError

_VERSION = re.compile(r"([0-9]+(?:\.[0-9]+)*)(?:(a|b|rc)([0-9]+))?(?:\.post([0-9]+))?(?:\.dev([0-9]+))?")
_FINAL = ("zz", 0)
_LAST = 2**63


@dataclass(frozen=True, slots=True)
class Version:
    """A version as the order of releases sees it (PEP 440, the forms that files of releases may carry)."""

    text: str
    major: int
    minor: int
    key: tuple[tuple[int, ...], tuple[str, int], int, int]
    """What versions are ordered by."""


def read_version(text: str) -> Version:
    """Raises ReleaseError for what no release has."""
    found = _VERSION.fullmatch(text)
    if found is None or len(text) > 64:
        raise ReleaseError(f"{text[:80]!r} is no version of a release, which is written like 1.2.3")
    numbers = [int(part) for part in found[1].split(".")]
    numbers += [0] * (3 - len(numbers))
    while len(numbers) > 3 and numbers[-1] == 0:
        numbers.pop()
    before = (found[2], int(found[3])) if found[2] else _FINAL
    after = -1 if found[4] is None else int(found[4])
    dev = _LAST if found[5] is None else int(found[5])
    if found[5] is not None and found[2] is None and found[4] is None:
        before = ("", 0)  # 1.2.dev1 comes before 1.2a1
    return Version(text, numbers[0], numbers[1], (tuple(numbers), before, after, dev))


def is_older(one: str, other: str) -> bool:
    """True when `one` was released before `other`. Raises ReleaseError."""
    return read_version(one).key < read_version(other).key


def understand_each_other(one: str, other: str) -> bool:
    """True when a server and an agent of these versions may work together: one minor version apart at most, and
    over the border of a major version only its first minor one. Raises ReleaseError.
    """
    older, newer = sorted((read_version(one), read_version(other)), key=lambda version: version.key)
    if older.major == newer.major:
        return newer.minor - older.minor <= 1
    return newer.major - older.major == 1 and newer.minor == 0
