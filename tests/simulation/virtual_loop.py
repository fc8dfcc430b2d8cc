"""An event loop whose clock moves only when there is nothing left to do at its present moment.

Nothing waits in real time and no file is watched, so the order of everything follows from what is scheduled.
"""

from __future__ import annotations

import asyncio
from asyncio import base_events
from collections.abc import Callable
from typing import Any


class Standstill(Exception):
    """Nothing will ever happen again: everybody waits for somebody."""


class VirtualLoop(base_events.BaseEventLoop):
    """Time is a number. `time()` begins at `start_s`, seconds."""

    def __init__(self, start_s: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._now = start_s
        self._selector = self  # what BaseEventLoop asks between two rounds
        self.slow_callback_duration = float("inf")
        self.unhandled: list[str] = []
        """What tasks raised and nobody took."""
        self.set_exception_handler(self._keep)

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[object]:
        """BaseEventLoop's question for ready files: let the time pass that it would have waited."""
        if timeout is None:
            raise Standstill("nothing is scheduled")
        if timeout > 0:
            self._now += timeout
        return []

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """What would be done by a thread is done at once: threads would break the clock."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[object]) -> None:
        return None

    def _write_to_self(self) -> None:
        return None

    def _keep(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")
