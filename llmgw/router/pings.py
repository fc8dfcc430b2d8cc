"""Which streams have to hear something, since nothing has come for them yet and somebody may cut what is silent.

Pure: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Pinged(Protocol):
    """Who is reminded: an exchange."""

    def ping(self) -> None:
        """Send its client a comment."""


class Pings:
    """Each is reminded every `interval_s` until it is removed. Looking costs only for those that are due."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._due: OrderedDict[Pinged, float] = OrderedDict()
        """In the order of their times, since all wait for the same interval."""

    def add(self, pinged: Pinged, now: float) -> None:
        """Remind it from now on."""
        self._due[pinged] = now + self._interval_s

    def remove(self, pinged: Pinged) -> None:
        """Its answer has begun, or nobody waits for it any more."""
        self._due.pop(pinged, None)

    @property
    def count(self) -> int:
        """How many are reminded."""
        return len(self._due)

    def sweep(self, now: float) -> None:
        """Remind those whose time has come."""
        due = self._due
        while due:
            pinged, at = next(iter(due.items()))
            if at > now:
                return
            due.move_to_end(pinged)
            due[pinged] = now + self._interval_s
            pinged.ping()
