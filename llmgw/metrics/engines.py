"""What engines say of their load, by model. The same of a server and of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from llmgw.metrics.family import Family, LastSample

_MODEL = ("model",)

REQUESTS = Family(
    "llmgw_engine_requests",
    "gauge",
    "Requests that a model's engines say they have running and waiting, whoever sent them",
    ("model", "state"),
    "2 × models",
)
CACHE_USED = Family(
    "llmgw_engine_cache_used_ratio",
    "gauge",
    "The fullest KV cache of a model's engines; 1 is all of it",
    _MODEL,
    "models",
)
PREFIX_HITS = Family(
    "llmgw_engine_prefix_hit_ratio",
    "gauge",
    "The share of prompt tokens that the prefix caches of a model's engines had, over half a minute",
    _MODEL,
    "models",
)
PROMPT_TOKENS = Family(
    "llmgw_engine_prompt_tokens_per_second",
    "gauge",
    "Prompt tokens that a model's engines take in, cached ones included, over half a minute",
    _MODEL,
    "models",
)
TOKENS = Family(
    "llmgw_engine_tokens_per_second",
    "gauge",
    "Tokens that a model's engines generate, over half a minute",
    _MODEL,
    "models",
)
PREEMPTIONS = Family(
    "llmgw_engine_preemptions_per_second",
    "gauge",
    "Requests that a model's engines set aside for want of room in their KV caches, over half a minute",
    _MODEL,
    "models",
)
FAMILIES = (REQUESTS, CACHE_USED, PREFIX_HITS, PROMPT_TOKENS, TOKENS, PREEMPTIONS)


class Load(Protocol):
    """What an engine said of its load; None: it does not tell."""

    @property
    def running(self) -> int | None: ...

    @property
    def waiting(self) -> int | None: ...

    @property
    def cache_used(self) -> float | None: ...

    @property
    def prefix_hits(self) -> float | None: ...

    @property
    def prompt_tokens_per_s(self) -> float | None: ...

    @property
    def tokens_per_s(self) -> float | None: ...

    @property
    def preemptions_per_s(self) -> float | None: ...


def engine_text(said: Mapping[str, Sequence[Load]]) -> str:
    """Every family. `said` has what each model's engines said lately."""

    def of_models(family: Family, figure: Callable[[Sequence[Load]], float | None]) -> str:
        return family.text(((model,), figure(loads)) for model, loads in said.items())

    return (
        REQUESTS.grouped(((model,), requests_of(loads)) for model, loads in said.items())
        + of_models(CACHE_USED, lambda loads: max(_known(load.cache_used for load in loads), default=None))
        + of_models(PREFIX_HITS, _prefix_hits)
        + of_models(PROMPT_TOKENS, lambda loads: _sum(load.prompt_tokens_per_s for load in loads))
        + of_models(TOKENS, lambda loads: _sum(load.tokens_per_s for load in loads))
        + of_models(PREEMPTIONS, lambda loads: _sum(load.preemptions_per_s for load in loads))
    )


def requests_of(loads: Sequence[Load]) -> list[LastSample]:
    """How many requests run and wait in these engines, of those that tell."""
    return [
        ("running", _sum(load.running for load in loads)),
        ("waiting", _sum(load.waiting for load in loads)),
    ]


def _prefix_hits(loads: Sequence[Load]) -> float | None:
    """Of all their prompt tokens: an engine counts by how many it took in."""
    told = [(load.prefix_hits, load.prompt_tokens_per_s) for load in loads]
    shares = [(hits, tokens) for hits, tokens in told if hits is not None and tokens]
    tokens_per_s = sum(tokens for _, tokens in shares)
    return sum(hits * tokens for hits, tokens in shares) / tokens_per_s if tokens_per_s else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _sum(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) if known else None
