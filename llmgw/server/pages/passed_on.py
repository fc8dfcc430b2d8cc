"""Work for a browser that stops when the browser leaves: what it waits for costs an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.types import Receive

T = TypeVar("T")


async def while_there(receive: Receive, work: Coroutine[object, object, T]) -> T | None:
    """What the work returns; None when the client left first, and the work was cancelled for that.

    Call it when the request's body was read: all that can come then is that the client has left.
    """
    gone = asyncio.create_task(_gone(receive))
    working = asyncio.create_task(work)
    try:
        await asyncio.wait((gone, working), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (gone, working):
            task.cancel()
        await asyncio.gather(gone, working, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
