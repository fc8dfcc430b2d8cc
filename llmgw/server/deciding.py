"""The loop that has the hub decide: when something changed, and regularly, since time alone changes things."""

from __future__ import annotations

import asyncio

from llmgw.server.hub import Hub

TICK_S = 0.25
TURN_GAP_S = 0.02
"""At least this long between two turns: a burst of reports is decided on once."""
TURN_REST = 2.0
TURN_GAP_MAX_S = 0.5
"""A turn that took long is followed by a rest of so many times as long, up to this: the messages that it kept
waiting are answered first, and the next turn decides on all of them."""
PAUSE_S = 1.0
"""A turn that comes later than this was held up by this process itself."""


async def decide(hub: Hub) -> None:
    """Turn until cancelled."""
    loop = asyncio.get_running_loop()
    last = loop.time()
    while True:
        try:
            # Not wait_for: before Python 3.12 it swallows a cancellation that meets the event, and a server
            # that stops would wait for this loop for ever.
            async with asyncio.timeout(TICK_S):
                await hub.changed.wait()
        except TimeoutError:
            pass
        late_s = loop.time() - last - TICK_S
        if late_s > PAUSE_S:
            hub.forgive_pause(late_s)
        hub.changed.clear()
        begun = loop.time()
        hub.turn()
        last = loop.time()
        await asyncio.sleep(min(TURN_GAP_MAX_S, max(TURN_GAP_S, TURN_REST * (last - begun))))
