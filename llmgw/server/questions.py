"""Questions to agents whose answers come in a later report: who waits for which, bounded in number and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Questions(Generic[Answer]):
    """Questions of one kind that wait for their answers, by request id."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._waiting: dict[str, asyncio.Future[Answer]] = {}

    @property
    def full(self) -> bool:
        """True while no more may wait."""
        return len(self._waiting) >= self._waiting_max

    async def ask(self, request_id: str, send: Callable[[], None], timeout_s: float) -> Answer:
        """Send, and wait for the answer. Raises TimeoutError, and whatever `send` raises."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            send()
            return await asyncio.wait_for(future, timeout_s)
        finally:
            self._waiting.pop(request_id, None)

    def answered(self, request_id: str, answer: Answer) -> None:
        """Hand an answer to whoever still waits for it."""
        future = self._waiting.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(answer)
