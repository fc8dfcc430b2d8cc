"""The one task that writes: it takes what waits, commits it together, and tries again when that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from llmgw.messages.findings import Finding
from llmgw.server.store.batch import Outcome, apply_batch, hopeless
from llmgw.server.store.errors import StoreError
from llmgw.server.store.queue import WAITING_MAX, Write, WriteQueue

log = structlog.get_logger(__name__)

BATCH_MAX = 1_000
RETRY_BASE_S = 0.1
RETRY_MAX_S = 5.0

T = TypeVar("T")


class Writer:
    """Commits writes in their order, in batches, each in one step of a thread of its own.

    All its methods belong to one event loop's thread. `describe` turns an error into a sentence; `where` names
    the store in findings.
    """

    def __init__(
        self,
        engine: Engine,
        describe: Callable[[BaseException], StoreError],
        where: str,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._engine = engine
        self._describe = describe
        self._where = where
        self.check: Callable[[], Awaitable[None]] | None = None
        """Awaited before each commit; what it raises fails the commit."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store writer")
        self._queue = WriteQueue(waiting_max)
        self._in_flight: list[tuple[int, Write]] = []
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()
        self._closing = False
        self._failures = 0
        self._problem: StoreError | None = None
        self._refused = 0
        self._last_refusal = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="store writer")

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Have something that blocks done in the writer's thread, when its turn has come."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def waiting(self) -> int:
        """How many writes are not committed yet."""
        return len(self._queue) + len(self._in_flight)

    @property
    def problem(self) -> StoreError | None:
        """Why the last attempt to write failed; None when it did not."""
        return self._problem

    def add(self, write: Write) -> None:
        """Queue a write; returns at once. Raises StoreError when the store is closed."""
        if self._closing or self._task is None:
            raise StoreError(f"the store {self._where} is closed")
        self._queue.add(write)
        self._work.set()

    async def commit(self, apply: Callable[[Connection], T], then: Callable[[T], None]) -> T:
        """Queue a write and wait until it is committed; returns what `apply` returned.

        `then` gets it first, at the commit, also when the caller has been cancelled meanwhile.
        Raises the StoreError that `apply` raises, and StoreError when the write fails; it is not tried again
        then, so that an operator is told of it instead of waiting.
        """
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def committed(value: Any) -> None:
            try:
                then(value)
            finally:
                if not result.done():
                    result.set_result(value)

        def failed(error: StoreError) -> None:
            if not result.done():
                result.set_exception(error)

        self.add(Write(apply=apply, then=committed, failed=failed))
        self._urgent.set()
        value: T = await result
        return value

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything queued before this call is committed.

        Raises StoreError, with the reason, when `timeout_s` seconds are over first.
        """
        if not self.waiting:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append((self._queue.last_number, done))
        self._urgent.set()
        try:
            await asyncio.wait_for(done, timeout_s)
        except TimeoutError:
            what = self._problem.what if self._problem else f"{self._where} is slow"
            raise StoreError(
                f"{self.waiting} changes are not stored yet: {what}",
                (self._problem.remedy if self._problem else "") or "they are tried again",
            ) from None

    async def stored(self, timeout_s: float) -> bool:
        """True once everything queued before this call is committed; False when that fails or takes longer.

        While writing fails the answer is at once False: hundreds may ask at once, and a disk that takes nothing
        is not tried more often for it.
        """
        if not self.waiting:
            return True
        if self._problem is not None or self._task is None or self._task.done():
            return False
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append((self._queue.last_number, done))
        try:
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            async with asyncio.timeout(timeout_s):
                await done
        except (TimeoutError, StoreError):
            return False
        return True

    async def stop(self, timeout_s: float) -> None:
        """Write what waits and end. Raises StoreError when that takes more than `timeout_s` seconds."""
        try:
            await self._finish(timeout_s)
        finally:
            self._thread.shutdown(wait=False)

    async def _finish(self, timeout_s: float) -> None:
        task = self._task
        if task is None or self._closing:
            return
        self._closing = True
        self._work.set()
        self._urgent.set()
        await asyncio.wait([task], timeout=timeout_s)
        if task.done():
            return
        task.cancel()
        await asyncio.wait([task])
        error = self._problem or StoreError(f"{self._where} is slow")
        lost = StoreError(
            f"the store was closed with {self.waiting} changes unstored: {error.what}", error.remedy
        )
        for _, write in [*self._in_flight, *self._queue.take(self.waiting)]:
            if write.failed is not None:
                write.failed(lost)
        for _, done in self._flushes:
            if not done.done():
                done.set_exception(lost)
        raise lost

    def findings(self) -> list[Finding]:
        """What a person should know of the writing now."""
        found = []
        if self._problem is not None:
            found.append(
                Finding(
                    check="store-write-failing",
                    severity="error",
                    where=self._where,
                    what=f"{self.waiting} changes wait to be stored: {self._problem.what}."
                    if self.waiting
                    else f"The last change was refused, since it could not be stored: {self._problem.what}.",
                    why="They are kept in memory and tried again; but for the ends of shards, which agents tell "
                    "again, they are lost if the server ends first."
                    if self.waiting
                    else "Nothing else waits; this goes with the next change that can be stored.",
                    remedy=self._problem.remedy,
                )
            )
        if self._queue.behind:
            found.append(
                Finding(
                    check="store-behind",
                    severity="warning",
                    where=self._where,
                    what=f"{len(self._queue)} changes wait to be stored, more than {self._queue.waiting_max}.",
                    why="The disk does not keep up; what waits is lost if the server ends first.",
                    remedy="Look at the disk's load, or set state to a folder on a faster disk.",
                )
            )
        if self._refused:
            found.append(
                Finding(
                    check="store-write-refused",
                    severity="warning",
                    where=self._where,
                    what=f"{self._refused} changes could never be stored and were dropped: {self._last_refusal}.",
                    why="History lacks them.",
                    remedy="This is a defect of llmgw; please report it with the server's log.",
                )
            )
        return found

    async def _run(self) -> None:
        while True:
            self._urgent.clear()
            self._in_flight = self._queue.take(BATCH_MAX)
            if not self._in_flight:
                if self._closing:
                    return
                self._work.clear()
                await self._work.wait()
                continue
            try:
                outcome = await self._store([write for _, write in self._in_flight])
            except Exception as error:  # whatever it is, what waits is kept and tried again
                await self._after_failure(error)
            else:
                self._after_commit(outcome)

    async def _store(self, batch: Sequence[Write]) -> list[Outcome]:
        if self.check is not None:
            await self.check()
        return await self.in_thread(partial(self._store_now, batch))

    def _store_now(self, batch: Sequence[Write]) -> list[Outcome]:
        try:
            with self._engine.begin() as connection:
                return apply_batch(connection, batch, careful=False)
        except Exception as error:
            if not hopeless(error):
                raise
        # One of them can never succeed: find it, and store the others.
        with self._engine.begin() as connection:
            return apply_batch(connection, batch, careful=True)

    def _after_commit(self, outcomes: list[Outcome]) -> None:
        if self._problem is not None:
            log.info("store writes again", store=self._where, after_failures=self._failures)
        self._problem, self._failures = None, 0
        stored, self._in_flight = self._in_flight, []
        for (_, write), (value, error) in zip(stored, outcomes, strict=True):
            if error is None:
                if write.then is not None:
                    self._call(write.then, value)
            elif write.failed is not None:
                self._call(write.failed, self._describe(error))
            else:
                self._refused += 1
                self._last_refusal = " ".join(str(error).split())[:200]
                log.error("store refused a change", store=self._where, error=self._last_refusal)
        self._answer_flushes()

    def _call(self, callback: Callable[[Any], None], value: object) -> None:
        try:
            callback(value)
        except StoreError:
            pass  # it wanted to write more, and the store is closing
        except Exception:
            log.exception("a callback of the store failed", store=self._where)

    async def _after_failure(self, error: Exception) -> None:
        problem = self._describe(error)
        if self._problem is None:
            unforeseen = not isinstance(error, (SQLAlchemyError, OSError, StoreError))
            log.error("store cannot write", store=self._where, error=str(problem), exc_info=unforeseen)
        self._problem = problem
        self._queue.put_back(self._in_flight)
        self._in_flight = []
        # Also those that stand behind more than one batch: their callers would wait as long as this lasts.
        for write in self._queue.take_awaited():
            if write.failed is not None:
                write.failed(problem)
        self._answer_flushes()
        wait_s = min(RETRY_MAX_S, RETRY_BASE_S * 2 ** min(self._failures, 16))
        self._failures += 1
        # A connection that failed may be broken: the next attempt opens the file anew.
        try:
            await self.in_thread(self._engine.dispose)
        except Exception as failure:
            log.warning("store connection did not close", store=self._where, error=str(failure))
        try:
            async with asyncio.timeout(wait_s):
                await self._urgent.wait()
        except TimeoutError:
            pass

    def _answer_flushes(self) -> None:
        oldest = self._queue.oldest_number
        still = []
        for number, done in self._flushes:
            if oldest is None or number < oldest:
                if not done.done():
                    done.set_result(None)
            elif not done.done():
                still.append((number, done))
        self._flushes = still
