"""An API key as one router knows it: what it may ask for, and this router's part of its limits."""

from __future__ import annotations

import time
from time import monotonic

from msgspec.structs import replace

from llmgw.messages.routes import KeyDemand, KeyRoute, KeyShare
from llmgw.router.caller import Caller
from llmgw.router.errors import ApiError
from llmgw.router.key_errors import expired_key, model_not_allowed, over_limit, wrong_key
from llmgw.router.token_bucket import TokenBucket

RUNNING_WAIT_S = 1.0
"""Said to a client that has as many requests running as it may have; when one ends is not known."""


class KeyCaller(Caller):
    """One for all requests of a key, over all tables that have it."""

    __slots__ = (
        "_asked",
        "_busy",
        "_concurrency",
        "_left_lines",
        "_models",
        "_requests",
        "_rescaled",
        "_share",
        "_tokens",
        "_workers",
        "gone",
        "limited",
        "route",
        "running",
    )

    def __init__(
        self,
        route: KeyRoute,
        workers: int,
        now: float,
        share: KeyShare | None = None,
        busy: set[KeyCaller] | None = None,
    ) -> None:
        """`share` is this router's part of the limits, as far as it was told; else it is one of `workers`.

        It puts itself into `busy` whenever there may be something to tell of it (`take_demand`).
        """
        super().__init__(route.id, route.priority)
        self.gone = False
        self.running = 0
        self._asked = 0
        self._busy = busy if busy is not None else set()
        self._workers = workers
        self._share = share or KeyShare()
        self._rescaled = False
        """Its buckets were changed since it was last told its part, which may be the same and mean another."""
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self._concurrency: int | None = None
        self.limited = False
        """It has limits, so that what it asks for is told to the control process."""
        self.route = KeyRoute(id=route.id, hash=route.hash)
        self.update(route, now)

    def update(self, route: KeyRoute, now: float) -> None:
        """Take what a newer table says."""
        share = self._share
        self._rescaled = True
        if route.concurrency != self.route.concurrency:
            self._concurrency = None if route.concurrency is None else self._even(route.concurrency)
        self.route = route
        self.priority = route.priority
        self._models = None if route.models is None else frozenset(route.models)
        self._requests = self._bucket(self._requests, route.requests_per_minute, share.requests_moved, now)
        self._tokens = self._bucket(self._tokens, route.tokens_per_minute, share.tokens_moved, now)
        self._left_lines = _lines(b"requests", route.requests_per_minute) + _lines(
            b"tokens", route.tokens_per_minute
        )
        self.limited = self._requests is not None or self._tokens is not None or self._concurrency is not None
        self._busy.add(self)

    def share(self, share: KeyShare | None, workers: int, now: float) -> None:
        """This router's part of the limits from now on; None: it is one of `workers` that have the same."""
        if share == self._share and workers == self._workers and not self._rescaled:
            return  # as nearly all are, each time that one of them is another
        self._workers = workers
        self._rescaled = False
        before = self._share
        self._share = share = share or KeyShare(
            requests_moved=before.requests_moved, tokens_moved=before.tokens_moved
        )
        for bucket, part, moved in (
            (self._requests, share.requests_per_minute, share.requests_moved),
            (self._tokens, share.tokens_per_minute, share.tokens_moved),
        ):
            if bucket is not None:
                bucket.set_part(part or bucket.limit / workers, moved, now)
        self._busy.add(self)
        if self.route.concurrency is not None:
            self._concurrency = share.concurrency or self._even(self.route.concurrency)

    def begin_moves(self) -> None:
        """Whoever divides the limits counts anew what it moves."""
        self._share = replace(self._share, requests_moved=0.0, tokens_moved=0.0)
        for bucket in self._buckets():
            bucket.begin_moves()

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

    def not_allowed(self, model: str) -> ApiError:
        """What is said to who asks for a model that is not for this key."""
        return model_not_allowed(model, sorted(self._models or ()))

    def begin(self, model: str, now: float) -> bytes:
        """As in `Caller`. What is refused costs nothing but its count."""
        if self._models is not None and model not in self._models:
            raise self.not_allowed(model)
        if not self.limited:
            self.running += 1
            return b""
        self._asked += 1
        self._busy.add(self)
        requests, tokens = self._requests, self._tokens
        if self._concurrency is not None and self.running >= self._concurrency:
            what = (
                f"This API key has as many requests running as it may have at a time ({self.route.concurrency})"
            )
            raise over_limit("concurrency_exceeded", what, RUNNING_WAIT_S, self._headers(now))
        left: tuple[int, ...] = ()
        if tokens is not None:
            of_tokens = tokens.take_if(0, now)
            if of_tokens is None:
                raise self._over("tokens_per_minute_exceeded", "tokens", tokens, now)
            left = of_tokens
        if requests is not None:
            of_requests = requests.take_if(1, now)
            if of_requests is None:
                raise self._over("requests_per_minute_exceeded", "requests", requests, now)
            left = of_requests + left
        self.running += 1
        return self._left_lines % left

    def refused(self, now: float) -> None:
        self.running -= 1
        if self._requests is not None:
            self._requests.give_back(1, now)

    def ended(self, tokens: int, now: float) -> None:
        self.running -= 1
        if tokens and self._tokens is not None:
            self._tokens.take(tokens, now)

    # What is told of it.

    def take_demand(self) -> KeyDemand | None:
        """What it had this router do since the last call; None for nothing, and when its parts are whole."""
        now = monotonic()
        whole = all(bucket.level(now) >= bucket.part for bucket in self._buckets())
        if whole and not self._asked and not self.running:
            return None
        demand = KeyDemand(
            requests=self._asked,
            running=self.running,
            requests_left=self._requests.level(now) if self._requests is not None else None,
            tokens_left=self._tokens.level(now) if self._tokens is not None else None,
        )
        self._asked = 0
        return demand

    # What is said of it.

    def _over(self, code: str, what: str, bucket: TokenBucket, now: float) -> ApiError:
        sentence = f"This API key has used its {bucket.limit:.0f} {what} a minute"
        return over_limit(code, sentence, bucket.wait_s(now), self._headers(now))

    def _headers(self, now: float) -> bytes:
        for bucket in self._buckets():
            bucket.level(now)
        return self._left()

    def _left(self) -> bytes:
        """OpenAI's names (platform.openai.com/docs/guides/rate-limits): the limits are the key's, what is left of
        them is what this router has for it."""
        left: tuple[int, ...] = ()
        for bucket in self._buckets():
            left += bucket.left()
        return self._left_lines % left

    # Limits.

    def _buckets(self) -> list[TokenBucket]:
        return [bucket for bucket in (self._requests, self._tokens) if bucket is not None]

    def _even(self, limit: int) -> int:
        return max(1, limit // self._workers)

    def _bucket(
        self, bucket: TokenBucket | None, limit: int | None, moved: float, now: float
    ) -> TokenBucket | None:
        if limit is None:
            return None
        if bucket is None:
            return TokenBucket(limit, limit / self._workers, now, moved)
        if bucket.limit != limit:
            bucket.set_limit(limit, now)
        return bucket


def _lines(what: bytes, limit: int | None) -> bytes:
    """Header lines with two places: what is left, and in how many milliseconds all of it is there again."""
    if limit is None:
        return b""
    return (b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %%d\r\nx-ratelimit-reset-%b: %%dms\r\n") % (
        what,
        limit,
        what,
        what,
    )
