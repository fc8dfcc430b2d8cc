"""Sizes as people write and read them: `10GiB` in files, `10.0 GiB` in tables and sentences."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s?([kKMGT]?i?B)?")


def parse_size(value: Any) -> int:
    """Read `10GiB`, `500MB`, `1.5TB` or a plain number of bytes. Raises ValueError with a sentence."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a size; write for example 10GiB or 500MB")
    found = _SIZE.fullmatch(str(value).strip())
    unit = _UNITS.get((found[2] or "B").replace("KB", "kB")) if found else None
    if found is None or unit is None:
        raise ValueError(f"{value!r} is not a size; write for example 10GiB or 500MB")
    size = int(Decimal(found[1]) * unit)
    if size >= 2**60:
        raise ValueError(f"{value!r} is more than any disk holds; write for example 10GiB")
    return size


def format_size(size: int) -> str:
    """The shortest spelling that `parse_size` reads back as the very same number: 2147483648 → `2GiB`."""
    exact = [f"{size // factor}{unit}" for unit, factor in _UNITS.items() if size % factor == 0]
    return min(exact, key=len) if size else "0B"


def size_words(count: int) -> str:
    """Bytes for people: `5.0 GiB`."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
