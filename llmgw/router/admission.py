"""The one decision about a request that finds its model's engines full: it waits, or is told when to come back.

One for each model in a router; it outlives tables. Pure: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgw.router.drain_rate import DrainRate
from llmgw.router.endpoint import Endpoint
from llmgw.router.errors import (
    ApiError,
    engines_full,
    nothing_ready,
    queue_full,
    queue_too_long,
    queued_too_long,
    unknown_model,
)
from llmgw.router.queue import FairQueue, Waiter

if TYPE_CHECKING:
    from llmgw.router.table import Model

RETRY_AFTER_S_MAX = 60
RETRY_AFTER_UNKNOWN_S = 5
"""While nothing that waited has started yet."""


class Admission:
    """What waits for one model, and with whom it may start.

    `ahead` is how many a newcomer has to let go first, and `waiting` how many there are, with those that are sent
    again. Both are looked at with every request: while they are 0, nothing else here costs anything.
    """

    __slots__ = ("_bytes_max", "_model", "_queue", "_rate", "_requests_max", "_slots", "ahead", "waiting")

    def __init__(self) -> None:
        self.ahead = 0
        self.waiting = 0
        self._queue = FairQueue()
        self._rate = DrainRate()
        self._model: Model | None = None
        self._requests_max = 0
        self._bytes_max = 0
        self._slots = 0.0
        """What the model's endpoints may have at a time, of those that have a limit."""

    def follow(self, model: Model, workers: int) -> None:
        """From now on requests are for this model, and this router has the part of one of so many workers."""
        self._model = model
        route = model.route
        self._requests_max = max(1, route.queue_requests_max // workers) if route.queue_requests_max else 0
        self._bytes_max = route.queue_bytes_max // workers
        self._slots = sum(each.concurrency for each in model.endpoints if each.concurrency != math.inf)

    # Coming and going.

    def join(self, waiter: Waiter, now: float, ends_at: float) -> float:
        """Wait until `waiter` is told that it is its turn; returns until when at the longest.

        `ends_at` is when its request's time is up. Raises ApiError when there is no place for it, or when it
        could not start in time. Those whose place it takes are refused.
        """
        model, queue, rate = self._model, self._queue, self._rate
        assert model is not None
        route = model.route
        until = min(now + route.queue_timeout_s, ends_at)
        waiter.place = queue.place_for(waiter)
        displaced: list[Waiter] = []
        if not waiter.tried:
            if not self._requests_max:
                raise engines_full(model.name)
            gone = queue.displaced_by(waiter, count_max=self._requests_max, bytes_max=self._bytes_max)
            if gone is None:
                raise queue_full(model.name, self.retry_after_s(now))
            displaced = gone
            expected_s = None
            # Each slot has had another request once: before that, the rate may be that of a pause, or of a burst.
            if queue.count and rate.count >= self._slots:
                expected_s = rate.wait_s(waiter.place, now)
            if expected_s is not None and now + expected_s > until:
                raise queue_too_long(model.name, expected_s, until - now, self.retry_after_s(now))
        if not queue.count:
            rate.begin(now)
        for last in displaced:
            queue.leave(last)
            last.waited_s += now - last.came_at
        queue.join(waiter)
        self._count()
        if displaced:
            # Last, since a client that is answered may send its next request, which comes here as well.
            error = queue_full(model.name, self.retry_after_s(now))
            for last in displaced:
                last.refuse(error)
        return until

    def leave(self, waiter: Waiter, now: float) -> None:
        """It waits no more: its client is gone, or its time is up."""
        self._queue.leave(waiter)
        self._counted(waiter, now)

    def place_of(self, waiter: Waiter) -> int:
        """About which one it is, 1 for the next."""
        return self._queue.place_of(waiter)

    def timed_out(self, waiter: Waiter, now: float) -> ApiError:
        """What a request is told that waited until it could not wait longer."""
        assert self._model is not None
        return queued_too_long(self._model.name, now - waiter.came_at, self.retry_after_s(now))

    def retry_after_s(self, now: float) -> int:
        """When to ask again: in how long all that waits now will have started."""
        if not self._queue.count:
            return 1
        wait_s = self._rate.wait_s(self._queue.count, now)
        if wait_s is None:
            return RETRY_AFTER_UNKNOWN_S
        return max(1, min(math.ceil(wait_s), RETRY_AFTER_S_MAX))

    # Starting.

    def room_at(self, endpoint: Endpoint, now: float) -> None:
        """An endpoint of the model has one request less: the next may have its place."""
        while self.waiting and not endpoint.retired and endpoint.usable(now):
            if not self._start_next(endpoint, now):
                return

    def look(self, now: float, rand: Callable[[], float] = random.random) -> None:
        """Start what can be: a breaker may let a request through, a table or a share may have brought room."""
        model = self._model
        while self.waiting and model is not None:
            endpoint = model.pool.choose(now, (), rand) if model.endpoints else None
            if endpoint is None or not self._start_next(endpoint, now):
                return

    def moved(self, model: Model | None, name: str, names: list[str], now: float) -> None:
        """There is a new table, and this is what the model is there. Nobody waits for what nothing can answer."""
        if model is not None and model.endpoints:
            self.look(now)
            return
        for waiter in list(self._queue):
            self.leave(waiter, now)
            if model is None:
                waiter.refuse(unknown_model(name, names))
            else:
                waiter.refuse(nothing_ready(name, model.route.reason, model.route.retry_after_s))

    def judge(self, refusal: Callable[[str], ApiError | None], now: float) -> None:
        """Whoever waits here and was with no engine yet goes, if `refusal` has something to tell its caller (by
        id)."""
        told: dict[str, ApiError | None] = {}
        for waiter in list(self._queue):
            if waiter.tried or not waiter.waits:  # a client that was just answered may have taken others' places
                continue
            caller = waiter.caller
            if caller not in told:
                told[caller] = refusal(caller)
            error = told[caller]
            if error is not None:
                self.leave(waiter, now)
                waiter.refuse(error)

    def _start_next(self, endpoint: Endpoint, now: float) -> bool:
        waiter = self._queue.pop(endpoint)
        if waiter is None:
            return False
        self._rate.started(now)
        self._counted(waiter, now)
        waiter.admit(self._model, endpoint, now)
        return True

    def _counted(self, waiter: Waiter, now: float) -> None:
        waiter.waited_s += now - waiter.came_at
        self._count()
        if not self.waiting:
            self._rate.end(now)

    def _count(self) -> None:
        self.waiting = self._queue.count
        self.ahead = self._queue.fresh
