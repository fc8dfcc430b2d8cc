"""`--since` of several commands: how far back, or from when."""

from __future__ import annotations

from llmgw.config.errors import SentenceError


def since_time(text: str, now: float) -> str:
    """A duration back from `now` (seconds since the epoch) as a time; what begins like a date stays as it is.

    Raises SentenceError.
    """
    from llmgw.config.base import parse_duration_s

    if len(text) >= 10 and text[4:5] == "-":
        return text
    try:
        return str(max(0, int(now - parse_duration_s(text))))
    except ValueError as error:
        raise SentenceError(f"--since: {error}, or a date like 2026-11-01") from None
