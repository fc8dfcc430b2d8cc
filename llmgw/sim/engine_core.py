"""The simulated engine's scheduler: who may run, when each token is due, and what the faults do to it.

One timer a request and tick; between ticks and without requests it costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from llmgw.sim.engine_faults import FaultError, Faults, ResetFault
from llmgw.sim.engine_metrics import Metrics

# Tokens that come faster than this leave together. Nobody sees the difference, and the processor does.
STREAM_TICK_S = 0.02
# Without a stream only the metrics watch the progress.
PLAIN_TICK_S = 0.1
TOKENS_PER_TICK_MAX = 256
HELD_UP_LOOK_S = 0.25


@dataclass
class Job:
    """A request in the engine: how long its prompt is, and how long each of its choices will be."""

    prompt_tokens: int
    lengths: list[int]
    tick_s: float = PLAIN_TICK_S
    given: int = 0
    """Tokens generated so far of each choice (shorter choices have ended)."""
    aborted: bool = False
    """The engine was told to stop before all were generated."""
    finish_reason: str = "stop"
    """For the metrics."""

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far, all choices together."""
        return sum(min(self.given, length) for length in self.lengths)


Emit = Callable[[int], Awaitable[None]]
"""Called with the number of tokens that each choice now has."""


class Core:
    """Runs jobs at the speeds and with the faults that `faults` says at that moment."""

    def __init__(self, faults: Faults, metrics: Metrics, max_num_seqs: int) -> None:
        self.faults = faults
        self.metrics = metrics
        self.stopping = False
        self.held_up: Callable[[], bool] = lambda: False
        """True while another shard of the replica does not take part, so that nothing can be generated."""
        self._places = asyncio.Semaphore(max_num_seqs)
        self._sleepers: set[asyncio.Future[None]] = set()

    def accept(self, job: Job) -> Job:
        """Take a request in. Raises FaultError or ResetFault when a fault is due for it; may end the process."""
        try:
            self.faults.on_request()
            if self.stopping:
                raise FaultError("cannot schedule new futures after shutdown")
        except (FaultError, ResetFault):
            self.metrics.finished["error"] += 1
            raise
        return job

    async def run(self, job: Job, emit: Emit) -> None:
        """Generate a job to its end, or until it is aborted.

        Raises FaultError when the core dies under it (mode `error`), ResetFault when its connection is to be
        reset. A cancelled job counts as aborted by its client.
        """
        metrics = self.metrics
        started = asyncio.get_running_loop().time()
        try:
            await self._take_place()
            metrics.running += 1
            metrics.kv_tokens_used += job.prompt_tokens
            try:
                await self._generate(job, emit, started)
            finally:
                metrics.running -= 1
                metrics.kv_tokens_used -= job.prompt_tokens + job.completion_tokens
                self._places.release()
        except asyncio.CancelledError:
            metrics.aborted += 1
            raise
        except (FaultError, ResetFault):
            metrics.finished["error"] += 1
            raise
        metrics.finished["abort" if job.aborted else job.finish_reason] += 1
        metrics.end_to_end_s.observe(asyncio.get_running_loop().time() - started)

    def faults_changed(self) -> None:
        """Let running jobs look at the faults again: a stalled stream may go on."""
        self._wake()

    def stop(self) -> None:
        """Abort every job at once."""
        self.stopping = True
        for _ in range(self.metrics.waiting):
            self._places.release()
        self._wake()

    async def _take_place(self) -> None:
        self.metrics.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.metrics.waiting -= 1

    async def _generate(self, job: Job, emit: Emit, started: float) -> None:
        loop = asyncio.get_running_loop()
        faults, metrics = self.faults, self.metrics
        next_due = loop.time() + job.prompt_tokens / faults.prefill_tokens_per_s + faults.slow_first_token_s
        longest = max(job.lengths)
        in_prefill = True
        while in_prefill or job.given < longest:
            if self.stopping:
                job.aborted = True
                return
            if faults.core_dead and faults.core_dead_mode == "error":
                raise FaultError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
            stall, reset = faults.stall_after_tokens, faults.reset_after_tokens
            if self.held_up():
                await self._sleep(loop.time() + HELD_UP_LOOK_S)
                next_due = max(next_due, loop.time())
                continue
            if faults.core_dead or (stall is not None and not in_prefill and job.given >= stall):
                await self._sleep(None)
                next_due = max(next_due, loop.time())
                continue
            if reset is not None and not in_prefill and job.given >= reset:
                raise ResetFault
            now = loop.time()
            if now < next_due:
                await self._sleep(next_due)
                continue
            if in_prefill:
                in_prefill = False
                metrics.prompt_tokens += job.prompt_tokens
                metrics.first_token_s.observe(now - started)
                continue
            count = 1 + int((now - next_due) * faults.tokens_per_s)
            count = min(count, TOKENS_PER_TICK_MAX, longest - job.given)
            if stall is not None:
                count = min(count, stall - job.given)
            if reset is not None:
                count = min(count, reset - job.given)
            next_due += count / faults.tokens_per_s
            before = job.completion_tokens
            job.given += count
            metrics.generation_tokens += job.completion_tokens - before
            metrics.kv_tokens_used += job.completion_tokens - before
            await emit(job.given)
            if job.given < longest:
                await self._sleep(max(next_due, now + job.tick_s))

    async def _sleep(self, when: float | None) -> None:
        """Sleep until a time of the loop's clock, or until something changes (None: only then)."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(when, _finish, future) if when is not None else None
        self._sleepers.add(future)
        try:
            await future
        finally:
            self._sleepers.discard(future)
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        for future in self._sleepers:
            _finish(future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
