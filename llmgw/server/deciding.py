"""The loop that has the hub decide: when something changed, and regularly, since time alone changes things."""

from __future__ import annotations

import asyncio

from llmgw.server.hub import TURN_EVERY_S, Hub

TURN_GAP_S = 0.02
"""At least this long between two turns: a burst of reports is decided on once."""
TURN_REST = 2.0
TURN_GAP_MAX_S = 0.5
"""A turn that took long is followed by a rest of so many times as long, up to this: the messages that it kept
waiting are answered first, and the next turn decides on all of them."""


async def decide(hub: Hub) -> None:
    """Turn until cancelled, from `Hub.start_deciding` on: a router that lives is asked for its table first."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            # Not wait_for: before Python 3.12 it swallows a cancellation that meets the event, and a server
            # that stops would wait for this loop for ever.
            async with asyncio.timeout(TURN_EVERY_S):
                await hub.changed.wait()
        except TimeoutError:
            pass
        hub.changed.clear()
        if hub.waits_for_routers():
            continue
        begun = loop.time()
        hub.turn()
        took_s = loop.time() - begun
        await asyncio.sleep(min(TURN_GAP_MAX_S, max(TURN_GAP_S, TURN_REST * took_s)))
