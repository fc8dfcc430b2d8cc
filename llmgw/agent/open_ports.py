"""Waiting for a port that another process opens: the leader's rendezvous, or that of a process started before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LOOK_S = 0.5
TRY_MAX_S = 10.0


async def takes_connections(
    host: str, port: int, *, deadline_boot_s: float, now_boot_s: Callable[[], float], look_s: float = LOOK_S
) -> bool:
    """True as soon as the port does, False when the time is over. Times are CLOCK_BOOTTIME."""
    while True:
        try:
            async with asyncio.timeout(max(0.1, min(TRY_MAX_S, deadline_boot_s - now_boot_s()))):
                _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return True
        except (OSError, TimeoutError):
            pass
        if now_boot_s() >= deadline_boot_s:
            return False
        await asyncio.sleep(look_s)
