"""Numbers as pages write them, with their units: filters of the templates. What is unknown is `–`, never zero."""

from __future__ import annotations

import math
from collections.abc import Callable

UNKNOWN = "–"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MIB = _SIZES.index("MiB")


def seconds(value: float | None) -> str:
    """A duration: `340 ms`, `1.23 s`, `12.3 s`, `2 min`, `5 h`, `12 days`."""
    if _unknown(value):
        return UNKNOWN
    assert value is not None
    if value < 0:
        return f"−{seconds(-value)}"
    # A limit lies where the smaller unit would round up to it: never `1000 ms` or `60 min`.
    if round(value * 1000) < 1000:
        return f"{value * 1000:.0f} ms" if value else "0 s"
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 59.95:
        return f"{value:.1f} s"
    if value < 59.5 * 60:
        return f"{value / 60:.0f} min"
    if value < 47.5 * 3600:
        return f"{value / 3600:.0f} h"
    return f"{value / 86400:,.0f} days"


def per_s(value: float | None) -> str:
    """A rate: `0/s`, `0.02/s`, `1.5/s`, `12.3/s`, `1,234/s`."""
    if _unknown(value):
        return UNKNOWN
    assert value is not None
    if 0 < value < 0.005:
        return "< 0.01/s"
    return f"{_digits(value)}/s"


def mib(value: float | None) -> str:
    """An amount of memory in MiB: `512 MiB`, `1.5 GiB`, `140 GiB`."""
    return UNKNOWN if _unknown(value) else _size(value, _MIB)


def in_bytes(value: float | None) -> str:
    """A number of bytes: `12 B`, `5.2 GiB`, `1.1 TiB`."""
    return UNKNOWN if _unknown(value) else _size(value, 0)


def whole(value: float | None) -> str:
    """A count: `12,345`."""
    return UNKNOWN if _unknown(value) else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share from 0 to 1: `0 %`, `0.4 %`, `42 %`."""
    if _unknown(share):
        return UNKNOWN
    assert share is not None
    value = share * 100
    return f"{value:.1f} %" if 0 < value < 0.95 else f"{value:.0f} %"


def gbps(value: float | None) -> str:
    """A link's rate: `400 Gb/s`, `2.5 Gb/s`."""
    return UNKNOWN if _unknown(value) else f"{value:,.4g} Gb/s"


FILTERS: dict[str, Callable[[float | None], str]] = {
    "seconds": seconds,
    "per_s": per_s,
    "mib": mib,
    "bytes": in_bytes,
    "whole": whole,
    "percent": percent,
    "gbps": gbps,
}


def _unknown(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def _digits(value: float) -> str:
    """Three digits at least where there are any: what matters of a rate."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    text = f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _size(value: float | None, unit: int) -> str:
    assert value is not None
    while abs(value) >= 1023.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    short = abs(value) < 9.95 and round(value, 1) != round(value)
    return f"{value:.1f} {_SIZES[unit]}" if short else f"{value:,.0f} {_SIZES[unit]}"
