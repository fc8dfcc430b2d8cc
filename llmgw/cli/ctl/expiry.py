"""When something ends, as people type it: `30d`, `2027-01-31`, `2027-01-31T18:00`. Pure: time is an argument."""

from __future__ import annotations

import re
from datetime import datetime

from llmgw.config.base import parse_duration_s
from llmgw.config.errors import SentenceError

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:?\d{2})?)?")
_WORDS = "write a duration such as 12h or 30d, or a date such as 2027-01-31 or 2027-01-31T18:00"


class ExpiryError(SentenceError):
    """What was typed is no time, or none that is to come."""

    exit_code = 2


def parse_expiry(text: str, now: float) -> float:
    """Seconds since the epoch. A date is its first moment, and a time without a zone, here where it is typed.

    Raises ExpiryError.
    """
    text = text.strip()
    if _DATE.fullmatch(text):
        try:
            at = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            raise ExpiryError(f"--expires: {text!r} is no day of the calendar; {_WORDS}") from None
        if at <= now:
            raise ExpiryError(f"--expires: {text} lies in the past; llmgw ctl keys revoke ends a key now")
        return at
    try:
        seconds = parse_duration_s(text)
    except ValueError:
        raise ExpiryError(f"--expires: {text[:80]!r} is neither a duration nor a date; {_WORDS}") from None
    if seconds <= 0:
        raise ExpiryError("--expires: a key that ends at once is none; llmgw ctl keys revoke ends one")
    return now + seconds
