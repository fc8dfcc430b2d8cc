"""When an endpoint is left alone because it fails, and when it is tried again.

Pure: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]

FAILURES_TO_OPEN = 3
OPEN_S = 2.0
OPEN_S_MAX = 30.0


class Breaker:
    """Closed, until FAILURES_TO_OPEN failures come with no success between them. Then open for OPEN_S, and half
    open: one request at a time probes. A probe that fails opens it for twice as long, up to OPEN_S_MAX; one that
    succeeds closes it.

    `open_until` is 0 while it is closed, which the hot path looks at before it calls anything.
    """

    __slots__ = ("_open_s", "failures", "open_until", "probing")

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self.open_until = 0.0
        self.probing = False
        self._open_s = OPEN_S

    def state(self, now: float) -> BreakerState:
        """What it is called."""
        if not self.open_until:
            return "closed"
        return "open" if now < self.open_until else "half_open"

    def available(self, now: float) -> bool:
        """False while it is open, or half open with its one probe on the way."""
        return not self.open_until or (self.open_until <= now and not self.probing)

    def begin(self, now: float) -> bool:
        """A request is sent. True when it is the probe; it then ends with `succeeded`, `failed` or `give_up`."""
        if self.open_until and self.open_until <= now and not self.probing:
            self.probing = True
            return True
        return False

    def give_up(self) -> None:
        """The probe ended without telling anything, as when its client left."""
        self.probing = False

    def failed(self, now: float, probe: bool) -> bool:
        """A connection failed, an answer did not come in time, or it was a 5xx. True when that opens it.

        Of an open breaker only the probe's failure counts: the others were on their way when it opened, and
        however many they are, they say the same thing once more.
        """
        self.failures += 1
        if self.open_until:
            if not probe:
                return False
            self.probing = False
            self._open_s = min(self._open_s * 2, OPEN_S_MAX)
        elif self.failures < FAILURES_TO_OPEN:
            return False
        self.open_until = now + self._open_s
        return True

    def succeeded(self) -> bool:
        """It answered. True when that closes it."""
        was_open = bool(self.open_until)
        self.failures = 0
        self.open_until = 0.0
        self.probing = False
        self._open_s = OPEN_S
        return was_open
