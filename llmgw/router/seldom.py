"""Says a thing that may happen thousands of times a second once in a while."""

from __future__ import annotations

import logging
import time

SILENT_S = 60.0


class Seldom:
    """A log line with a rest after it."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._silent_until = 0.0

    def error(self, sentence: str, *arguments: object) -> None:
        """Say it, unless it was said within the last SILENT_S."""
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + SILENT_S
            self._log.error(sentence, *arguments)
