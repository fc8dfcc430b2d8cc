"""Waiting for conditions, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tests.patience import PATIENCE

DEADLINE_S = 10.0


async def until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Return as soon as the condition holds; fail with `what` when it does not in time."""
    end = asyncio.get_running_loop().time() + deadline_s * PATIENCE
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"not within {deadline_s * PATIENCE:g} s: {what}"
        await asyncio.sleep(0.02)


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """The same outside of an event loop."""
    end = time.monotonic() + deadline_s * PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s * PATIENCE:g} s: {what}"
        time.sleep(0.02)
