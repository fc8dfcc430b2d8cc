"""Counts what the routers saw of finished requests, by model, for as long as this process lives.

Bounded: a series for each model of the catalog and one for the rest, whatever clients ask for.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field

from llmgw.messages.routes import Outcome
from llmgw.metrics.family import OTHER
from llmgw.metrics.histogram import TOKEN_BOUNDS_S, Histogram

CLIENT_LEFT = 499
STATUS_CLASSES = ("2xx", "4xx", "5xx", "client_left")
"""Counted from 0 on, so that they are there before the first of them."""
ENDPOINTS_MAX = 4096
"""Endpoints counted between two scrapes; the longest known go first."""


@dataclass(slots=True)
class ModelTally:
    """One model's requests since the start of this process."""

    by_status: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUS_CLASSES, 0))
    retries: int = 0
    retries_refused: int = 0
    first_byte: Histogram = field(default_factory=Histogram)
    first_token: Histogram = field(default_factory=Histogram)
    """Of streams that went well."""
    per_token: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS_S))
    """Of the same, where the engine counted their tokens."""
    total: Histogram = field(default_factory=Histogram)
    queued: Histogram = field(default_factory=Histogram)
    """Of those that waited for an engine to have room."""


class RequestTally:
    """Fed with the routers' outcomes."""

    def __init__(self) -> None:
        self.models: dict[str, ModelTally] = {}
        self.endpoints: dict[tuple[str, str], dict[str, int]] = {}
        """(model, endpoint) → class of status → count, of the requests that were last sent there."""
        self.dropped = 0
        """Outcomes that routers threw away because nobody read them: what is counted here is short by them."""

    def take(self, outcomes: Iterable[Outcome], dropped: int, known: Collection[str]) -> None:
        """Count outcomes. `known` are the catalog's models; what names another is counted together."""
        self.dropped += dropped
        for outcome in outcomes:
            name = outcome.model if outcome.model in known else OTHER
            model = self.models.get(name)
            if model is None:
                model = self.models[name] = ModelTally()
            status = status_class(outcome.status)
            model.by_status[status] = model.by_status.get(status, 0) + 1
            model.retries += outcome.retries
            model.retries_refused += outcome.retry_refused
            if outcome.first_byte_s is not None:
                model.first_byte.add(outcome.first_byte_s)
                if outcome.stream and status == "2xx":
                    _time_stream(model, outcome, outcome.first_byte_s)
            if outcome.model:  # what was refused before its model was known took no time that is anybody's
                model.total.add(outcome.total_s)
            if outcome.queued_s:
                model.queued.add(outcome.queued_s)
            if outcome.endpoint is not None:
                self._count_endpoint((name, outcome.endpoint), status)

    def keep(self, known: Collection[str]) -> None:
        """Forget the models that have left the catalog, and have a tally for each that is in it."""
        for name in [name for name in self.models if name not in known and name != OTHER]:
            del self.models[name]
        for name in (*known, OTHER):
            if name not in self.models:
                self.models[name] = ModelTally()

    def keep_endpoints(self, known: Container[tuple[str, str]]) -> None:
        """Forget the endpoints that are no more; `known` are (model, endpoint)."""
        for at in [at for at in self.endpoints if at not in known]:
            del self.endpoints[at]

    def _count_endpoint(self, at: tuple[str, str], status: str) -> None:
        counts = self.endpoints.get(at)
        if counts is None:
            counts = self.endpoints[at] = dict.fromkeys(STATUS_CLASSES, 0)
            if len(self.endpoints) > ENDPOINTS_MAX:
                del self.endpoints[next(iter(self.endpoints))]
        counts[status] = counts.get(status, 0) + 1


def _time_stream(model: ModelTally, outcome: Outcome, first_byte_s: float) -> None:
    model.first_token.add(first_byte_s)
    tokens = outcome.completion_tokens
    if tokens is not None and tokens > 1 and not outcome.estimated:
        model.per_token.add(max(0.0, outcome.total_s - first_byte_s) / (tokens - 1))


def status_class(status: int) -> str:
    """`2xx`, `4xx`, …; `client_left` for a client that went away first, which is nobody's error."""
    if status == CLIENT_LEFT:
        return "client_left"
    return f"{status // 100}xx" if 100 <= status < 600 else "5xx"
