"""How many requests may be sent a second time, so that a failing model is not drowned in repetitions.

Pure: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

RETRIED_SHARE = 0.2
# What a model that was quiet may spend at once, and how fast that comes back without any requests.
RESERVE = 20.0
RESERVE_PER_S = 0.5
# An engine that dies takes all its requests along. What was saved up has to last for those.
SAVED_MAX = 1000.0


class RetryBudget:
    """One model's budget in one router: every request puts RETRIED_SHARE of a retry in, every retry takes one
    out. From its start to any time, retries are at most RETRIED_SHARE of the requests, and RESERVE, and
    RESERVE_PER_S for each second."""

    __slots__ = ("_filled_at", "_tokens")

    def __init__(self, now: float) -> None:
        self._tokens = RESERVE
        self._filled_at = now

    def request(self) -> None:
        """A client's request has come."""
        tokens = self._tokens + RETRIED_SHARE
        if tokens <= SAVED_MAX:
            self._tokens = tokens

    def allows(self, now: float) -> bool:
        """True while there is a retry left."""
        if self._tokens < RESERVE:
            self._tokens = min(RESERVE, self._tokens + RESERVE_PER_S * max(0.0, now - self._filled_at))
        self._filled_at = now
        return self._tokens >= 1.0

    def spend(self, now: float) -> bool:
        """Take a retry. False when there is none left."""
        if not self.allows(now):
            return False
        self._tokens -= 1.0
        return True
