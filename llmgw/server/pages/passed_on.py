"""Work for a browser that stops when the browser leaves, or may ask no more: its wait costs an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.requests import Request

from llmgw.server.admin.backend import AdminError
from llmgw.server.pages.still_may import StillMay

T = TypeVar("T")

LOOK_S = 1.0
"""Between two looks at whether a session still is."""


async def while_there(request: Request, work: Coroutine[object, object, T], alive: StillMay) -> T | None:
    """What the work returns; None when the client left first, and the work was cancelled for that.

    Call it when the request's body was read: all that can come then is that the client has left. Raises
    AdminError(401) when its session ended first, what the work raises, and StoreError.
    """
    gone = asyncio.create_task(_gone(request))
    over = asyncio.create_task(_over(request, alive))
    working = asyncio.create_task(work)
    tasks = (gone, over, working)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if over.done():
            over.result()
            raise AdminError(401, "session-over", "this session has ended, and what was asked in it was stopped")
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _over(request: Request, alive: StillMay) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        if not await alive(request):
            return
