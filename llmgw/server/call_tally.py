"""How long agents' calls took, which were refused, and how long commands waited. Bounded by our own words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from llmgw.metrics.family import OTHER
from llmgw.metrics.histogram import CALL_BOUNDS_S, Histogram

CALLS = ("register", "poll", "report", "renew", "release")
CODES_MAX = 50


class CallTally:
    """Since the start of this process."""

    def __init__(self) -> None:
        self.seconds = {call: Histogram(CALL_BOUNDS_S) for call in CALLS}
        """Call → from its arrival to its answer."""
        self.refusals: Counter[str] = Counter()
        """Code of the refusal → how often."""
        self.commands = Histogram(CALL_BOUNDS_S)
        """From a command's being queued to the poll that acknowledges it."""

    def answered(self, call: str, duration_s: float, refused: str | None) -> None:
        """A call was answered; `refused` is the code of a refusal, None when it was not refused."""
        self.seconds[call].add(duration_s)
        if refused is not None:
            known = refused in self.refusals or len(self.refusals) < CODES_MAX
            self.refusals[refused if known else OTHER] += 1

    def acknowledged(self, waited_s: Iterable[float]) -> None:
        """Commands were acknowledged after so long."""
        for each in waited_s:
            self.commands.add(each)
