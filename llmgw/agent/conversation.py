"""The seams of the agent's conversation with the server, and its manners after a failure.

The loop itself is in `loop.py`; here is what it is given: a transport, a clock, and who keeps the shards.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from llmgw.messages.agent import HeldShard, ListWeights, LogChunk, RemoveWeights, ShardSpec, WeightsAnswer
from llmgw.messages.fabric_test import BandwidthAnswer, BandwidthQuestion
from llmgw.messages.upgrade import LastUpgrade, Upgrade, UpgradeTold


class TransportError(Exception):
    """No answer, or none that can be read; the message is a sentence."""


class Transport(Protocol):
    """One exchange with the server."""

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """POST `body` and return (status, body). Raises TransportError."""
        ...


class Clock(Protocol):
    """Monotonic seconds, and waiting for them to pass."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Keeper(Protocol):
    """Who keeps the shards, as the loop sees it; its methods do not raise."""

    def listen(self, listener: Callable[[str], None]) -> None: ...

    async def held(self) -> list[HeldShard]: ...

    async def start(self, spec: ShardSpec) -> None: ...

    async def stop(self, shard_id: str, reason: str) -> None: ...

    async def forget(self, shard_ids: list[str]) -> None: ...

    async def read_log(
        self, *, request_id: str, shard_id: str, stream: str, offset: int | None, lines: int
    ) -> LogChunk: ...

    async def weights(self, command: ListWeights | RemoveWeights) -> WeightsAnswer: ...


class BandwidthTester(Protocol):
    """Who runs the ends of bandwidth tests, as the loop sees it."""

    async def answer(self, question: BandwidthQuestion) -> BandwidthAnswer:
        """Without raising, in bounded time."""
        ...

    async def close(self) -> None:
        """Nothing of any end is left afterwards."""
        ...


class Upgrades(Protocol):
    """Who replaces this agent's program, as the loop sees it; its methods do not raise."""

    def last(self) -> LastUpgrade | None:
        """How the last upgrade ended, for the registration."""
        ...

    def registered(self) -> None: ...

    def refused(self, sentence: str) -> None:
        """A server answered, and did not take the registration."""
        ...

    def unheard(self, sentence: str) -> None:
        """No server answered the registration."""
        ...

    async def carry_out(self, upgrade: Upgrade, tell: Callable[[UpgradeTold], Awaitable[None]]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Life:
    """Which life of the agent this is: the kernel's boot, this process, and when it began (CLOCK_BOOTTIME)."""

    boot_id: str
    instance: str
    instance_started_at: float


class Backoff:
    """Waits that double from `base_s` to `max_s`, each shortened by up to a half at random.

    After a server's restart the whole fleet comes back at once; the randomness spreads it.
    """

    def __init__(self, base_s: float, max_s: float, randomness: random.Random) -> None:
        self._base_s = base_s
        self._max_s = max_s
        self._random = randomness
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_s(self) -> float:
        """How long to wait before the next try."""
        # The exponent is bounded: a year of failures must not overflow a float.
        whole = min(self._max_s, self._base_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return whole * self._random.uniform(0.5, 1.0)
