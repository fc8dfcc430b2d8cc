"""What every configuration model shares: unknown keys refused, durations as `5s` and `2m`, sizes as `10GiB`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from llmgw.config.sizes import format_size, parse_size

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration_s(value: Any) -> float:
    """Read `5s`, `2m`, `1h30m`, `250ms` or a plain number of seconds.

    Raises ValueError with a sentence for anything else, negative numbers included.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a duration; write for example 5s, 2m or 1h30m")
    if isinstance(value, (int, float)):
        seconds = float(value)
    else:
        text = value.strip()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            seconds = float(text)
        else:
            parts = _PART.findall(text)
            if not parts or "".join(number + unit for number, unit in parts) != text:
                raise ValueError(f"{value!r} is not a duration; write for example 5s, 2m or 1h30m")
            seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if not 0 <= seconds < 1e9:
        raise ValueError(f"{value!r} is not a duration between 0 and 30 years")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest spelling that `parse_duration_s` reads back as the very same number: 300.0 → `5m`."""
    if 0 < seconds < 1:
        text = f"{_digits(seconds * 1000)}ms"
        return text if parse_duration_s(text) == seconds else f"{_digits(seconds)}s"
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS_S[unit] == 0:
            return f"{_digits(seconds / _UNITS_S[unit])}{unit}"
    return f"{_digits(seconds)}s"


def _digits(value: float) -> str:
    """The shortest digits that are exactly this number, never with an exponent, which no duration has."""
    text = format(Decimal(repr(float(value))), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


Duration = Annotated[float, BeforeValidator(parse_duration_s), PlainSerializer(format_duration, return_type=str)]
"""Seconds as a float inside, `5s` or `2m` in the files."""


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str)]
"""Bytes as an int inside, `10GiB` or `500MB` in the files."""


class Model(BaseModel):
    """A part of a configuration file. Unknown keys are refused; values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())
