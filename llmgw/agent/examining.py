"""What is looked at beside the hardware, seldom and in a thread of its own: no heartbeat waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from llmgw.messages.findings import Finding

log = structlog.get_logger("agent")

BEAT_S = 300.0


class SlowFindings:
    """Keeps what the last examination found. `examine` blocks; at most one runs at a time."""

    def __init__(
        self, examine: Callable[[], list[Finding]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._examine = examine
        self._clock = clock
        self._running: threading.Thread | None = None
        self._found: list[Finding] = []
        self._next = float("-inf")

    def latest(self) -> list[Finding]:
        """What was found last; nothing until the first examination has ended. Begins another when it is time."""
        if self._clock() >= self._next and (self._running is None or not self._running.is_alive()):
            self._next = self._clock() + BEAT_S
            self._running = threading.Thread(target=self._run, name="examination", daemon=True)
            self._running.start()
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._examine()
        except Exception as error:
            log.error("this node cannot be examined", error=repr(error))
