"""Questions to agents, such as for a part of a shard's output, and who waits for the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from llmgw.messages.agent import Command
from llmgw.server.hub_error import HubError
from llmgw.server.mailbox import Mailbox


class HasRequestId(Protocol):
    """What an agent answers with, in one of its reports."""

    @property
    def request_id(self) -> str: ...


Answer = TypeVar("Answer", bound=HasRequestId)


class Questions(Generic[Answer]):
    """Questions of one kind that are under way: asked in a node's mailbox, answered in a report of that node."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._waiting: dict[tuple[str, str], asyncio.Future[Answer]] = {}

    async def ask(
        self,
        node_id: str,
        mailbox: Mailbox | None,
        request_id: str,
        command: Callable[[int], Command],
        timeout_s: float,
        lost: str,
    ) -> Answer:
        """Put the question into the mailbox, and wait for the answer. `command` makes it of its sequence number,
        `lost` is what fails without.

        Raises HubError 503 when the node cannot be asked now, 504 when it does not answer in time.
        """
        if mailbox is None or mailbox.closed:
            raise HubError(503, "node_silent", f"{node_id} has no session now, so {lost}")
        if len(self._waiting) >= self._waiting_max:
            raise HubError(503, "busy", "too many questions are waiting for answers; try again in a moment")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[node_id, request_id] = future
        try:
            if not mailbox.ask(command):
                raise HubError(503, "busy", f"too many commands wait for {node_id}; try again in a moment")
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise HubError(504, "node_silent", f"{node_id} did not answer within {timeout_s:.0f} s") from None
        finally:
            self._waiting.pop((node_id, request_id), None)

    def answered(self, node_id: str, answers: Iterable[Answer]) -> None:
        """A node's report brought these. Nobody answers what another node was asked; what is late is dropped."""
        for answer in answers:
            waiting = self._waiting.pop((node_id, answer.request_id), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
