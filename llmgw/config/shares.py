"""Shares as people write them: `90%` or `0.9`."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s?%")


def parse_share(value: Any) -> float:
    """Read `90%`, `0.9` or 1 as a share from above 0 to 1. Raises ValueError with a sentence."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a share; write for example 90% or 0.9")
    percent = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        share = float(percent[1]) / 100 if percent else float(value)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        hint = f"; did you mean {value}%?" if 1 < share <= 100 and not percent else ""
        raise ValueError(
            f"{value!r} is not a share above 0 and up to 1 (100%); write for example 90% or 0.9{hint}"
        )
    return share


Share = Annotated[float, BeforeValidator(parse_share)]
"""A float above 0 and up to 1 inside, `90%` or `0.9` in the files."""
