"""Questions to agents for a part of a shard's output, and who waits for the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from llmgw.messages.agent import LogChunk
from llmgw.server.hub_error import HubError
from llmgw.server.mailbox import Mailbox

LOG_REQUESTS_MAX = 256


class LogReads:
    """Log reads that are under way: asked in a node's mailbox, answered in one of its reports."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[LogChunk]] = {}

    async def ask(
        self,
        node_id: str,
        mailbox: Mailbox | None,
        request_id: str,
        *,
        shard_id: str,
        stream: str,
        offset: int | None,
        lines: int,
        timeout_s: float,
    ) -> LogChunk:
        """Ask and wait. Raises HubError 503 when the node cannot be asked now, 504 when it does not answer."""
        if mailbox is None or mailbox.closed:
            raise HubError(503, "node_silent", f"{node_id} has no session now, so its logs cannot be read")
        if len(self._waiting) >= LOG_REQUESTS_MAX:
            raise HubError(503, "busy", "too many log requests are waiting for answers; try again in a moment")
        future: asyncio.Future[LogChunk] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            if not mailbox.read_log(request_id, shard_id, stream, offset, lines):
                raise HubError(503, "busy", f"too many commands wait for {node_id}; try again in a moment")
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise HubError(504, "node_silent", f"{node_id} did not answer within {timeout_s:.0f} s") from None
        finally:
            self._waiting.pop(request_id, None)

    def answered(self, chunks: Iterable[LogChunk]) -> None:
        """A report brought these; what nobody waits for any more is dropped."""
        for chunk in chunks:
            waiting = self._waiting.pop(chunk.request_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(chunk)
