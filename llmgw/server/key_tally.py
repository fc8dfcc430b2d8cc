"""Counts the requests of each API key, for as long as this process lives. Bounded by the keys that exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from llmgw.messages.routes import Outcome
from llmgw.server.request_tally import status_class

WITHOUT = ""
"""The id under which requests without a key that is known are counted."""


class KeyTally:
    """Key id → class of status → count, fed with the routers' outcomes."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}

    def take(self, outcomes: Iterable[Outcome], known: Collection[str]) -> None:
        """Count outcomes; those of keys that are not known are counted with those that had none."""
        for outcome in outcomes:
            key = outcome.key if outcome.key in known else WITHOUT
            status = status_class(outcome.status)
            by_status = self.counts.setdefault(key, {})
            by_status[status] = by_status.get(status, 0) + 1

    def keep(self, known: Collection[str]) -> None:
        """Forget keys that are no more."""
        for key in [key for key in self.counts if key not in known and key != WITHOUT]:
            del self.counts[key]
