"""What engines say of their load, by model. The same of a server and of an agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from llmgw.metrics.family import Family, Sample

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
    ("model",),
    "models",
)
FAMILIES = (REQUESTS, CACHE_USED)


class Load(Protocol):
    """What an engine said of its load; None: it does not tell."""

    @property
    def running(self) -> int | None: ...

    @property
    def waiting(self) -> int | None: ...

    @property
    def cache_used(self) -> float | None: ...


def engine_text(said: Mapping[str, Sequence[Load]]) -> str:
    """Every family. `said` has what each model's engines said lately."""
    return REQUESTS.text(_requests(said)) + CACHE_USED.text(_cache_used(said))


def _requests(said: Mapping[str, Sequence[Load]]) -> Iterator[Sample]:
    for model, loads in said.items():
        running = [load.running for load in loads if load.running is not None]
        waiting = [load.waiting for load in loads if load.waiting is not None]
        yield (model, "running"), sum(running) if running else None
        yield (model, "waiting"), sum(waiting) if waiting else None


def _cache_used(said: Mapping[str, Sequence[Load]]) -> Iterator[Sample]:
    for model, loads in said.items():
        yield (model,), max((load.cache_used for load in loads if load.cache_used is not None), default=None)
