"""Requests of clients, by model: how many, how they ended, how long they took, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from llmgw.metrics.family import Family, Sample
from llmgw.server.metrics.source import Source
from llmgw.server.usage_book import TokenTally

_MODEL = ("model",)
_MODELS = "models"
_TIMES = "18 × models"

REQUESTS = Family(
    "llmgw_requests_total",
    "counter",
    "Requests that ended, by what the client got; client_left is a client that went away first",
    ("model", "status_class"),
    "6 × models",
)
RETRIES = Family(
    "llmgw_retries_total",
    "counter",
    "Further engines that were asked after the first one failed",
    _MODEL,
    _MODELS,
)
REFUSED = Family(
    "llmgw_retries_refused_total",
    "counter",
    "Requests that failed although another engine could have been asked: the retry budget was spent",
    _MODEL,
    _MODELS,
)
FIRST_BYTE = Family(
    "llmgw_request_first_byte_seconds",
    "histogram",
    "From a request's arrival to the first byte of its answer's body, streamed or not",
    _MODEL,
    _TIMES,
)
FIRST_TOKEN = Family(
    "llmgw_time_to_first_token_seconds",
    "histogram",
    "From a request's arrival to the first byte of a stream that went well",
    _MODEL,
    _TIMES,
)
PER_TOKEN = Family(
    "llmgw_time_per_output_token_seconds",
    "histogram",
    "Between a stream's tokens: from its first byte to its end, divided by one less than its tokens; of streams "
    "that went well and whose tokens the engine counted",
    _MODEL,
    _TIMES,
)
TOTAL = Family(
    "llmgw_request_seconds",
    "histogram",
    "From a request's arrival to the end of its answer",
    _MODEL,
    _TIMES,
)
QUEUE_WAIT = Family(
    "llmgw_queue_wait_seconds",
    "histogram",
    "How long requests waited for an engine to have room, of those that had to, served or not",
    _MODEL,
    _TIMES,
)
DROPPED = Family(
    "llmgw_router_outcomes_dropped_total",
    "counter",
    "Requests that are missing in the others, since routers could not keep what they saw of them",
)
TOKENS = Family(
    "llmgw_tokens_total",
    "counter",
    "Tokens of requests: of their prompts, of these the ones from a cache, and of their answers",
    ("model", "kind"),
    "3 × models",
)
QUEUED = Family("llmgw_queue_requests", "gauge", "Requests that wait for an engine to have room", _MODEL, _MODELS)
FAMILIES = (
    *(REQUESTS, RETRIES, REFUSED, FIRST_BYTE, FIRST_TOKEN, PER_TOKEN, TOTAL, QUEUE_WAIT, DROPPED),
    *(TOKENS, QUEUED),
)


def request_text(source: Source) -> str:
    """Every family of requests. Models of the catalog have all their series from the first scrape on: a rate over
    one that appears misses its beginning."""
    hub = source.hub
    tally = hub.requests
    tally.keep({model.name for model in hub.catalog.models})
    models = sorted(tally.models.items())
    waiting = (
        (model.name, [queued.get(model.name, 0) for queued in hub.queued.values()])
        for model in hub.catalog.models
    )
    return (
        REQUESTS.text(((name, status), n) for name, model in models for status, n in model.by_status.items())
        + RETRIES.text(((name,), model.retries) for name, model in models)
        + REFUSED.text(((name,), model.retries_refused) for name, model in models)
        + FIRST_BYTE.histograms(((name,), model.first_byte) for name, model in models)
        + FIRST_TOKEN.histograms(((name,), model.first_token) for name, model in models)
        + PER_TOKEN.histograms(((name,), model.per_token) for name, model in models)
        + TOTAL.histograms(((name,), model.total) for name, model in models)
        + QUEUE_WAIT.histograms(((name,), model.queued) for name, model in models)
        + DROPPED.value(tally.dropped)
        + TOKENS.text(_tokens(source))
        + QUEUED.text(((name,), sum(counts)) for name, counts in waiting)
    )


def _tokens(source: Source) -> Iterator[Sample]:
    told = {model.name: TokenTally() for model in source.hub.catalog.models} | dict(source.tokens())
    for name, tally in sorted(told.items()):
        yield (name, "prompt"), tally.prompt
        yield (name, "cached"), tally.cached
        yield (name, "completion"), tally.completion
