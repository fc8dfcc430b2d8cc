"""Takes usage from the routers, has it stored at most once a second, and acknowledges what is on the disk.

A router keeps a batch until then, so that a server which dies loses none; one that is told again is not added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from llmgw.messages.routes import UsageBatch, UsageStored
from llmgw.metrics.family import OTHER
from llmgw.server.store.usage import UsageStore

WRITE_EVERY_S = 1.0
PRUNE_EVERY_S = 3600.0

Acknowledge = Callable[[UsageStored], None]


@dataclass(slots=True)
class TokenTally:
    """One model's tokens since the start of this process."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


class UsageBook:
    """One for all routers of a server. Make it inside the running event loop."""

    def __init__(
        self,
        store: UsageStore,
        *,
        keep_s: float,
        wall: Callable[[], float],
        write_every_s: float = WRITE_EVERY_S,
    ) -> None:
        self.tokens: dict[str, TokenTally] = {}
        """By model, what was stored since the start."""
        self._store = store
        self._keep_s = keep_s
        self._wall = wall
        self.known: Callable[[], Collection[str]] = tuple
        """The catalog's models: tokens of others are counted together."""
        self._every_s = write_every_s
        self._waiting: dict[str, tuple[UsageBatch, Acknowledge]] = {}
        self._loop = asyncio.get_running_loop()
        self._written_at = float("-inf")
        self._pruned_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._prune()

    def take(self, batch: UsageBatch, acknowledge: Acknowledge) -> None:
        """A router said what requests took. `acknowledge` is called once that is on the disk."""
        self._waiting[batch.ledger] = batch, acknowledge
        if self._timer is None:
            due = max(self._loop.time(), self._written_at + self._every_s)
            self._timer = self._loop.call_at(due, self.write)

    def write(self) -> None:
        """Hand what waits to the store now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._prune()
        taken, self._waiting = list(self._waiting.values()), {}
        if not taken:
            return
        self._written_at = self._loop.time()

        def stored(fresh: list[bool]) -> None:
            for (batch, acknowledge), new in zip(taken, fresh, strict=True):
                if new:
                    self._count(batch)
                acknowledge(UsageStored(ledger=batch.ledger, number=batch.number))

        self._store.add([batch for batch, _ in taken], self._wall(), stored)

    def _count(self, batch: UsageBatch) -> None:
        known = self.known()
        for name in [name for name in self.tokens if name not in known and name != OTHER]:
            del self.tokens[name]
        for row in batch.rows:
            tally = self.tokens.setdefault(row.model if row.model in known else OTHER, TokenTally())
            tally.prompt += row.prompt_tokens
            tally.cached += row.cached_tokens
            tally.completion += row.completion_tokens

    def _prune(self) -> None:
        now = self._loop.time()
        if now - self._pruned_at >= PRUNE_EVERY_S:
            self._pruned_at = now
            self._store.prune(self._keep_s, self._wall())
