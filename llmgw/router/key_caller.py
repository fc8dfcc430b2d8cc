"""An API key as one router knows it: what it may ask for, and this router's part of its limits."""

from __future__ import annotations

import math
import time
from time import monotonic

from llmgw.messages.routes import KeyDemand, KeyRoute, KeyShare
from llmgw.router.caller import Caller
from llmgw.router.key_errors import expired_key, model_not_allowed, over_limit, wrong_key
from llmgw.router.token_bucket import TokenBucket

RUNNING_WAIT_S = 1.0
"""Said to a client that has as many requests running as it may have; when one ends is not known."""


class KeyCaller(Caller):
    """One for all requests of a key, over all tables that have it."""

    __slots__ = (
        "_asked",
        "_concurrency",
        "_models",
        "_requests",
        "_spent",
        "_tokens",
        "_workers",
        "gone",
        "limited",
        "route",
        "running",
    )

    def __init__(self, route: KeyRoute, workers: int, now: float) -> None:
        """`workers`: one of so many routers this one is, until its part is told."""
        super().__init__(route.id, route.priority)
        self.gone = False
        self.running = 0
        self._asked = 0
        self._spent = 0
        self._workers = workers
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self._concurrency: int | None = None
        self.limited = False
        """It has limits, so that what it asks for is told to the control process."""
        self.route = KeyRoute(id=route.id, hash=route.hash)
        self.update(route, now)

    def update(self, route: KeyRoute, now: float) -> None:
        """Take what a newer table says."""
        if route.concurrency != self.route.concurrency:
            self._concurrency = None if route.concurrency is None else self._even(route.concurrency)
        self.route = route
        self.priority = route.priority
        self._models = None if route.models is None else frozenset(route.models)
        self._requests = self._bucket(self._requests, route.requests_per_minute, now)
        self._tokens = self._bucket(self._tokens, route.tokens_per_minute, now)
        self.limited = self._requests is not None or self._tokens is not None or self._concurrency is not None

    def share(self, share: KeyShare | None, workers: int, now: float) -> None:
        """This router's part of the limits from now on; None: it is one of `workers` that have the same."""
        self._workers = workers
        share = share or KeyShare()
        for bucket, part in (
            (self._requests, share.requests_per_minute),
            (self._tokens, share.tokens_per_minute),
        ):
            if bucket is not None:
                bucket.set_part(part if part else bucket.limit / workers, now)
        if self.route.concurrency is not None:
            self._concurrency = share.concurrency or self._even(self.route.concurrency)

    # Requests.

    def check_alive(self) -> None:
        """Raises ApiError (401) for a key that is revoked or has expired."""
        if self.gone:
            raise wrong_key()
        expires_at_s = self.route.expires_at_s
        if expires_at_s is not None and time.time() >= expires_at_s:
            raise expired_key()

    def may_use(self, model: str) -> bool:
        return self._models is None or model in self._models

    def begin(self, model: str) -> bytes:
        """As in `Caller`. What is refused costs nothing but its count."""
        if not self.may_use(model):
            raise model_not_allowed(model, sorted(self._models or ()))
        if not self.limited:
            self.running += 1
            return b""
        now = monotonic()
        self._asked += 1
        if self._concurrency is not None and self.running >= self._concurrency:
            what = (
                f"This API key has as many requests running as it may have at a time ({self.route.concurrency})"
            )
            raise over_limit("concurrency_exceeded", what, RUNNING_WAIT_S, self._headers(now))
        for bucket, code, what in (
            (self._tokens, "tokens_per_minute_exceeded", "tokens"),
            (self._requests, "requests_per_minute_exceeded", "requests"),
        ):
            if bucket is not None and bucket.level(now) <= 0:
                sentence = f"This API key has used its {bucket.limit:.0f} {what} a minute"
                raise over_limit(code, sentence, bucket.wait_s(now), self._headers(now))
        if self._requests is not None:
            self._requests.take(1, now)
        self.running += 1
        return self._headers(now)

    def ended(self, tokens: int) -> None:
        self.running -= 1
        if tokens and self._tokens is not None:
            self._tokens.take(tokens, monotonic())
            self._spent += tokens

    # What is told of it.

    def take_demand(self) -> KeyDemand | None:
        """What it had this router do since the last call; None for nothing."""
        if not (self._asked or self._spent or self.running) or not self.limited:
            return None
        demand = KeyDemand(requests=self._asked, tokens=self._spent, running=self.running)
        self._asked = self._spent = 0
        return demand

    def _headers(self, now: float) -> bytes:
        """OpenAI's names (platform.openai.com/docs/guides/rate-limits): the limits are the key's, what is left of
        them is what this router has for it."""
        lines = b""
        if self._requests is not None:
            lines += _header_lines(b"requests", self._requests, now)
        if self._tokens is not None:
            lines += _header_lines(b"tokens", self._tokens, now)
        return lines

    # Limits.

    def _even(self, limit: int) -> int:
        return max(1, limit // self._workers)

    def _bucket(self, bucket: TokenBucket | None, limit: int | None, now: float) -> TokenBucket | None:
        if limit is None:
            return None
        if bucket is None:
            return TokenBucket(limit, limit / self._workers, now)
        if bucket.limit != limit:
            bucket.set_limit(limit, now)
        return bucket


def _header_lines(what: bytes, bucket: TokenBucket, now: float) -> bytes:
    return (b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %.3fs\r\n") % (
        what,
        bucket.limit,
        what,
        max(0, math.floor(bucket.level(now))),
        what,
        bucket.full_in_s(now),
    )
