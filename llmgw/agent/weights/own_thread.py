"""Calls on disks that may hang, such as a network share whose server has gone.

The threads that asyncio shares would be used up by them, and with them the agent's heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

HUNG_MAX = 16


class DiskHangs(Exception):
    """A call did not come back in time, or too many have not."""


class OwnThreads:
    """One daemon thread a call; one that hangs is left behind and counted until it comes back."""

    def __init__(self) -> None:
        self._running = 0

    async def call(self, work: Callable[[], T], limit_s: float | None = None) -> T:
        """What `work` returns or raises. Raises DiskHangs after `limit_s`, or when too many hang already."""
        if self._running >= HUNG_MAX:
            raise DiskHangs
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._running += 1

        def settle(result: T | None, error: Exception | None) -> None:
            self._running -= 1
            if not done.done():
                if error is not None:
                    done.set_exception(error)
                else:
                    done.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as exc:
                error = exc
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=run, name="disk", daemon=True).start()
        try:
            async with asyncio.timeout(limit_s):
                return await done
        except TimeoutError:
            if done.done() and not done.cancelled():
                raise  # the work's own
            raise DiskHangs from None
