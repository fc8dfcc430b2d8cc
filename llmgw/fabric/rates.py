"""Link rates as infiniband-diags writes them: a width and a speed, `4xNDR`."""

from __future__ import annotations

import re

# Gb/s of one lane, as people quote them (a 4x link: SDR 10, QDR and FDR10 40, EDR 100, NDR 400, XDR 800).
LANE_GBPS = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR10": 10.0,
    "FDR": 14.0,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
SPEEDS = tuple(LANE_GBPS)
"""Slowest first. FDR10 stands above QDR: the same 40 Gb/s, less of them lost to coding."""

WIDTHS = (1, 2, 4, 8, 12)
UNKNOWN_SPEED = "???"
"""What infiniband-diags prints for a speed that it does not know: before 34 for NDR, before 49 for XDR."""

_RATE = re.compile(r"(\d{1,2})x ?([A-Z]{3}\d{0,2}|\?\?\?)\Z")


def parse_rate(text: str) -> tuple[int, str] | None:
    """`4xNDR` → (4, "NDR"); a speed of `???` is a rate whose speed is unknown; anything else is None."""
    match = _RATE.match(text)
    if match is None:
        return None
    width, speed = int(match[1]), match[2]
    return (width, speed) if width in WIDTHS and (speed in LANE_GBPS or speed == UNKNOWN_SPEED) else None


def format_rate(rate: tuple[int, str]) -> str:
    """(4, "NDR") → `4xNDR`."""
    return f"{rate[0]}x{rate[1]}"


def rate_gbps(width: int, speed: str) -> float | None:
    """Gb/s of a link; None when its speed is unknown."""
    lane = LANE_GBPS.get(speed)
    return None if lane is None else width * lane


def speed_rank(speed: str) -> int:
    """The place of a speed among all, slowest 0. Raises ValueError for an unknown one."""
    return SPEEDS.index(speed)
