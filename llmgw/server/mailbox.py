"""Commands for one node's current session, kept until they are acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmgw.messages.agent import Command, ShardSpec, StartShard, StopShard

COMMANDS_MAX = 1024
"""Unacknowledged commands of one node. Far above SHARDS_PER_NODE_MAX; beyond it questions are refused."""


class Mailbox:
    """One session's commands. They die with the session (invariant 10): another one gets another mailbox."""

    def __init__(self, session: str, now: Callable[[], float]) -> None:
        """`now` is the monotonic clock."""
        self.session = session
        self._now = now
        self._queued_at: dict[int, float] = {}
        self._commands: list[Command] = []
        self._last_seq = 0
        self._changed = asyncio.Event()
        self.closed = False

    def start(self, spec: ShardSpec) -> None:
        """Queue a shard's start."""
        self._add(StartShard(seq=self._next(), spec=spec))

    def stop(self, shard_id: str, reason: str) -> None:
        """Queue a shard's stop."""
        self._add(StopShard(seq=self._next(), shard_id=shard_id, reason=reason))

    def ask(self, question: Callable[[int], Command]) -> bool:
        """Queue a question, made of its sequence number; False when too much is queued already."""
        if len(self._commands) >= COMMANDS_MAX:
            return False
        self._add(question(self._next()))
        return True

    def acknowledge(self, seq: int) -> list[float]:
        """Drop everything up to `seq`, which the agent has carried out; how many seconds each waited for that."""
        now = self._now()
        done = [command.seq for command in self._commands if command.seq <= seq]
        self._commands = [command for command in self._commands if command.seq > seq]
        if not self._commands:
            self._changed.clear()
        return [now - self._queued_at.pop(number) for number in done]

    def names(self, shard_id: str) -> bool:
        """True while an unacknowledged command names the shard."""
        return any(
            (isinstance(command, StartShard) and command.spec.shard_id == shard_id)
            or (isinstance(command, StopShard) and command.shard_id == shard_id)
            for command in self._commands
        )

    async def wait(self, timeout_s: float) -> list[Command]:
        """Everything unacknowledged, oldest first; waits up to `timeout_s` for the first one."""
        if not self._commands and not self.closed:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return list(self._commands)

    def close(self) -> None:
        """Wake whoever waits: this session is over."""
        self.closed = True
        self._changed.set()

    def _next(self) -> int:
        self._last_seq += 1
        return self._last_seq

    def _add(self, command: Command) -> None:
        self._commands.append(command)
        self._queued_at[command.seq] = self._now()
        self._changed.set()
