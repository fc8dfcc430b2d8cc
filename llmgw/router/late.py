"""Writes that wait for the end of the event loop's turn, and then go out one behind the other.

Each write wakes whoever reads. On the same machine that is a process which is done with it, and asleep again,
before the next one comes, when another request is looked at between the two; one behind the other they find it
awake.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger(__name__)

AT_ONCE_MAX = 64
"""In a turn with more than so many, the first go out before it is over."""


class LateWriter(Protocol):
    """Who has something to write: a connection."""

    def flush(self) -> None:
        """Write it, if that was not done already and the connection still is one."""


class LateWrites:
    """Those of one event loop."""

    __slots__ = ("_due", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[LateWriter] = []

    def add(self, writer: LateWriter) -> None:
        """Have it flushed when all that is readable now was looked at."""
        due = self._due
        if not due:
            self._loop.call_soon(self._flush)
        due.append(writer)
        if len(due) >= AT_ONCE_MAX:
            self._flush()

    def _flush(self) -> None:
        due, self._due = self._due, []
        for writer in due:
            try:
                writer.flush()
            except Exception:  # the others' must go out
                log.exception("something could not be written")
