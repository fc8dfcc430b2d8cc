"""What the admin API answers about the last requests: each of the newest, and rates of the last hour.

Kept in the server's memory alone: a restart begins anew. Times are seconds since the epoch, rates per second.
"""

from __future__ import annotations

import msgspec


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """One request that ended. Nothing of its body is kept."""

    id: int
    """Increases with each request; starts at 1 with the server."""
    at: float
    """When the server heard of its end, at most a second after it."""
    key: str = ""
    """The name of its API key; empty: it came without one that is known."""
    model: str
    """Empty where the request named none."""
    endpoint: str | None = None
    """The replica (or static endpoint) that answered, or was asked last."""
    status: int
    """What the client got; 499: it left first."""
    stream: bool = False
    queued_s: float = 0.0
    first_byte_s: float | None = None
    total_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    estimated: bool = False
    """The router counted the tokens itself, as the engine said nothing of them."""
    retries: int = 0
    """Further engines that were asked."""
    retry_refused: bool = False
    """Another engine could have been asked, but the model's retry budget was spent."""
    retried_because: str | None = None
    """What became of each engine that was asked before the last."""
    error: str | None = None
    """Why it failed: a sentence, or where it named no model that is known the code of the refusal."""
    request_id: str = ""
    """What its client knows it by (`x-request-id`); empty for what was no whole request."""

    @property
    def passed_on(self) -> bool:
        """Whether the engine itself refused or failed: what it said went to the client, and is kept nowhere."""
        return self.status >= 400 and self.status != 499 and self.error is None and self.endpoint is not None


class ModelRates(msgspec.Struct, frozen=True, kw_only=True):
    """A model's requests in the last `window_s` seconds. Percentiles are within 7 %; None: there were none."""

    model: str
    window_s: float
    requests_per_s: float = 0.0
    errors_per_s: float = 0.0
    """Answers with 5xx."""
    prompt_tokens_per_s: float = 0.0
    tokens_per_s: float = 0.0
    """Of answers."""
    first_byte_p50_s: float | None = None
    first_byte_p95_s: float | None = None
    total_p50_s: float | None = None
    total_p95_s: float | None = None
    in_flight: int = 0
    """Requests that its engines are answering now."""
    queued: int = 0
    """Requests that wait now for an engine to have room."""


class RatePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a series: what ended from `at` on for `step_s` seconds."""

    at: float
    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    first_byte_p50_s: float | None = None
    first_byte_p95_s: float | None = None
    total_p50_s: float | None = None
    total_p95_s: float | None = None


class ModelSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A model's last hour at most, the oldest step first; steps without a request are there too."""

    model: str
    step_s: float
    points: list[RatePoint] = []
