"""Replicas: which the catalog wants, and how those that there are fare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from llmgw.fleet.model import ReplicaState
from llmgw.metrics.family import OTHER, Family, Sample
from llmgw.server.metrics.source import Source

_LABELS = ("model", "profile")
_BOUND = "profiles"

REPLICAS = Family(
    "llmgw_replicas",
    "gauge",
    "Replicas by model, profile and state",
    (*_LABELS, "state"),
    f"{len(ReplicaState)} × profiles",
)
WANTED = Family("llmgw_replicas_wanted", "gauge", "Replicas that the catalog wants", _LABELS, _BOUND)
OUT_OF_ROTATION = Family(
    "llmgw_replicas_out_of_rotation",
    "gauge",
    "Ready replicas that get no requests: no progress, or their fabric is down",
    _LABELS,
    _BOUND,
)
FAILURES = Family(
    "llmgw_replica_failures_in_a_row",
    "gauge",
    "How often in a row a profile's replicas failed; each makes the wait before the next start longer",
    _LABELS,
    _BOUND,
)
FAILED = Family(
    "llmgw_replica_failures_total", "counter", "Replicas that failed, whatever for", ("model",), "models"
)
START = Family(
    "llmgw_replica_start_seconds",
    "histogram",
    "From a replica's placement to its first answer, downloads and loading included",
    ("model",),
    "14 × models",
)
FAMILIES = (REPLICAS, WANTED, OUT_OF_ROTATION, FAILURES, FAILED, START)


def replica_text(source: Source) -> str:
    """Every family of replicas; those of no profile of the catalog are counted as `(other)`."""
    hub = source.hub
    profiles = [(model.name, profile) for model in hub.catalog.models for profile in model.profiles]
    known = sorted((name, profile.name) for name, profile in profiles)
    backoff = hub.fleet.backoff
    hub.transitions.keep([model.name for model in hub.catalog.models])
    return (
        REPLICAS.text(_replicas(source, known))
        + WANTED.text(((name, profile.name), profile.replicas) for name, profile in profiles)
        + OUT_OF_ROTATION.text(_out_of_rotation(source, known))
        + FAILURES.text((key, backoff[key].failures if key in backoff else 0) for key in known)
        + FAILED.text(((model,), count) for model, count in hub.transitions.failures.items())
        + START.histograms(((model,), times) for model, times in hub.transitions.starts.items())
    )


def _replicas(source: Source, known: list[tuple[str, str]]) -> Iterator[Sample]:
    kept = set(known)
    count = Counter(
        (*(key if (key := (replica.model, replica.profile)) in kept else (OTHER, OTHER)), replica.state)
        for replica in source.hub.fleet.replicas.values()
    )
    for name, profile in [*known, (OTHER, OTHER)]:
        for state in ReplicaState:
            yield (name, profile, state.value), count[name, profile, state]


def _out_of_rotation(source: Source, known: list[tuple[str, str]]) -> Iterator[Sample]:
    count = Counter(
        (replica.model, replica.profile)
        for replica in source.hub.fleet.replicas.values()
        if replica.state is ReplicaState.READY and replica.out_of_rotation is not None
    )
    for key in known:
        yield key, count[key]
