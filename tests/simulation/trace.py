"""What happened, a line an event: the same seed gives the same bytes."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable

TAIL_LINES = 60


class Trace:
    """Lines with their moment, in virtual seconds. Only the tail is kept unless `whole`."""

    def __init__(self, clock: Callable[[], float], whole: bool = False) -> None:
        self._clock = clock
        self.lines: list[str] | deque[str] = [] if whole else deque(maxlen=TAIL_LINES)
        self.count = 0
        self.faults: Counter[str] = Counter()
        """Injected faults by kind."""
        self._hash = hashlib.sha256()

    def say(self, subject: str, text: str) -> None:
        """Add a line."""
        line = f"{self._clock():10.4f} {subject:<10} {text}"
        self.count += 1
        self.lines.append(line)
        self._hash.update(line.encode())

    def fault(self, kind: str, text: str = "") -> None:
        """Add a line about something broken on purpose, and count it."""
        self.faults[kind] += 1
        self.say("fault", f"{kind} {text}".rstrip())

    @property
    def digest(self) -> str:
        """The same for two traces that are the same byte for byte."""
        return self._hash.hexdigest()[:16]
