"""Keeps the newest requests that ended, as the routers told of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from llmgw.messages.recent_views import RequestView
from llmgw.messages.routes import Outcome

REQUESTS_KEPT = 5000


class RecentRequests:
    """Fed with outcomes; the oldest go. `key_name` knows the name of a key's id, None of one that is gone."""

    def __init__(self, key_name: Callable[[str], str | None], kept_max: int = REQUESTS_KEPT) -> None:
        self._key_name = key_name
        self._kept: deque[tuple[int, float, Outcome]] = deque(maxlen=kept_max)
        self._last = 0

    def take(self, outcomes: Iterable[Outcome], wall: float) -> None:
        """Keep outcomes. `wall` is when they came, in seconds since the epoch."""
        for outcome in outcomes:
            self._last += 1
            self._kept.append((self._last, wall, outcome))

    def views(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        fits: Callable[[RequestView], bool] = lambda view: True,
    ) -> list[RequestView]:
        """The newest first; `before` is a request's id, to page by key."""
        found = (
            self._view(number, at, outcome)
            for number, at, outcome in reversed(self._kept)
            if before is None or number < before
        )
        return list(islice(filter(fits, found), limit))

    def _view(self, number: int, at: float, outcome: Outcome) -> RequestView:
        return RequestView(
            id=number,
            at=at,
            key=(self._key_name(outcome.key) or outcome.key) if outcome.key else "",
            model=outcome.model,
            endpoint=outcome.endpoint,
            status=outcome.status,
            stream=outcome.stream,
            queued_s=outcome.queued_s,
            first_byte_s=outcome.first_byte_s,
            total_s=outcome.total_s,
            prompt_tokens=outcome.prompt_tokens,
            cached_tokens=outcome.cached_tokens,
            completion_tokens=outcome.completion_tokens,
            estimated=outcome.estimated,
            retries=outcome.retries,
            retry_refused=outcome.retry_refused,
            retried_because=outcome.retried_because,
            error=outcome.error,
            request_id=outcome.request_id,
        )
