"""Decides which routers are started and which are told to finish. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Fit(Enum):
    """What a worker is to this server."""

    CURRENT = "current"
    """It has greeted, and is as one would be that were started now."""
    UNKNOWN = "unknown"
    """It lives and has not greeted yet: it is starting, or hangs. Its place is taken."""
    OUTDATED = "outdated"
    """It serves, and another should in its place."""
    LEAVING = "leaving"
    """It accepts no more clients."""


@dataclass(frozen=True)
class Plan:
    """So many workers to start, and the names of those to be told to finish."""

    start: int
    stop: list[str]


def plan(workers: Sequence[tuple[str, Fit]], wanted: int) -> Plan:
    """What brings the workers to the number that is wanted.

    New ones accept before old ones are told to finish, and of too many the last started leave.
    """
    current = [name for name, fit in workers if fit is Fit.CURRENT]
    unknown = sum(fit is Fit.UNKNOWN for _, fit in workers)
    outdated = [name for name, fit in workers if fit is Fit.OUTDATED]
    stop = current[wanted:]
    if len(current) >= wanted:
        stop += outdated
    return Plan(start=max(0, wanted - len(current) - unknown), stop=stop)
