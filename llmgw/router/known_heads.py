"""Heads that were read before: who speaks HTTP says the same with every message, but for the length of its body.

Pure. Two heads that differ in nothing but the digits of their only Content-Length mean the same but for that
length, so what a parser accepted once need not be parsed again.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

HEAD_BYTES_MAX = 2048
"""Longer ones are not remembered."""
_DIGITS_MAX = 12
_LENGTH_LINE = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,%d})\r\n" % _DIGITS_MAX)


def split_length(head: bytes) -> tuple[bytes, int, int] | None:
    """The head without the digits of its Content-Length, where those stood, and the length.

    `head` is whole lines, each with its end. None where the length is not written as everybody writes it.
    """
    found = _LENGTH_LINE.search(head)
    if found is None:
        return None
    begin, end = found.span(1)
    return head[:begin] + head[end:], begin, int(found[1])


def read_same(data: bytes, before: bytes, after: bytes) -> tuple[int, int] | None:
    """Where a head ends that is `before`, the digits of its Content-Length and `after`, and that length; None
    where `data` does not begin with one.

    What a connection said last it nearly always says again: that is found without a search and a hash.
    """
    if data.startswith(before):
        at = data.find(b"\r", len(before))
        digits = data[len(before) : at]
        if digits.isdigit() and len(digits) <= _DIGITS_MAX and data.startswith(after, at):
            return at + len(after), int(digits)
    return None


T = TypeVar("T")


class KnownHeads(Generic[T]):
    """What was made of each head, for the last ones that were seen: between `count_max` / 2 and `count_max`."""

    __slots__ = ("_before", "_half", "_now")

    def __init__(self, count_max: int) -> None:
        self._half = count_max // 2
        self._now: dict[bytes, T] = {}
        self._before: dict[bytes, T] = {}

    def get(self, key: bytes) -> T | None:
        """What was kept for this key."""
        known = self._now.get(key)
        if known is None:
            known = self._before.get(key)
            if known is not None:
                self._put(key, known)
        return known

    def keep(self, key: bytes, made: T) -> bool:
        """Remember it, unless it is too long, or there is more than one length in it; True when it is."""
        if len(key) > HEAD_BYTES_MAX or key.lower().count(b"content-length") > 1:
            return False
        self._put(key, made)
        return True

    def _put(self, key: bytes, made: T) -> None:
        if len(self._now) >= self._half:
            self._before = self._now
            self._now = {}
        self._now[key] = made
