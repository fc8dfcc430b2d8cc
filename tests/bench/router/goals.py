"""What the gateway's speed should be beside others, and whether it is.

Ratios are taken within a round, of targets measured minutes apart on the same machine, and then their median.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.bench.router.measurement import Measurement

OURS = "llmgw"
DIRECT = "direct"
"""The engines themselves, with nothing between."""


@dataclass(frozen=True)
class Goal:
    """`least` or `most` is promised of `value(measurements)`; None: it was not measured."""

    what: str
    unit: str
    value: Callable[[Sequence[Measurement]], float | None]
    least: float | None = None
    most: float | None = None


def median(measurements: Iterable[Measurement], suite: str, target: str, figure: str) -> float | None:
    """Over the rounds."""
    values = [
        value
        for each in measurements
        if each.suite == suite and each.target == target and (value := getattr(each, figure)) is not None
    ]
    return statistics.median(values) if values else None


def speed(measurements: Iterable[Measurement], suite: str, peer: str, ours: str = OURS) -> float | None:
    """How many times less CPU time than a peer ours needs an operation."""
    rounds = _by_round(measurements, suite)
    ratios = [
        theirs / mine
        for each in rounds
        if (mine := each.get(ours, _NONE).cpu_us) and (theirs := each.get(peer, _NONE).cpu_us)
    ]
    return statistics.median(ratios) if ratios else None


def added_latency(measurements: Iterable[Measurement], suite: str, peer: str) -> float | None:
    """What ours adds to the median latency of the engines, as a part of what a peer adds."""
    ratios = []
    for each in _by_round(measurements, suite):
        mine, theirs, bare = (each.get(name, _NONE).p50_us for name in (OURS, peer, DIRECT))
        if mine and theirs and bare and theirs > bare:
            ratios.append((mine - bare) / (theirs - bare))
    return statistics.median(ratios) if ratios else None


def _by_round(measurements: Iterable[Measurement], suite: str) -> list[dict[str, Measurement]]:
    rounds: dict[int, dict[str, Measurement]] = {}
    for each in measurements:
        if each.suite == suite:
            rounds.setdefault(each.round, {})[each.target] = each
    return list(rounds.values())


_NONE = Measurement()


def _speed(suite: str, what: str, least: dict[str, float]) -> list[Goal]:
    return [
        Goal(f"{what}, speed against {peer}", "×", lambda all_, p=peer: speed(all_, suite, p), least=figure)
        for peer, figure in least.items()
    ]


def _worst(suite: str, figure: str) -> Callable[[Sequence[Measurement]], float | None]:
    def value(measurements: Sequence[Measurement]) -> float | None:
        found = [
            worst
            for each in measurements
            if each.suite.startswith(suite)
            and each.target == OURS
            and not each.failed
            and (worst := getattr(each, figure)) is not None
        ]
        return max(found, default=None)

    return value


def _errors(measurements: Sequence[Measurement]) -> float | None:
    ours = [each.errors for each in measurements if each.target == OURS and not each.failed]
    return float(sum(ours)) if ours else None


GOALS = (
    *_speed(
        "request",
        "request, 32 connections",
        {"nginx": 0.42, "vllm-router": 2.3, "sglang-router": 2.2, "smg": 4.0, "litellm": 200.0},
    ),
    *_speed("rate", "request, 500 a second", {"vllm-router": 1.3}),
    *_speed("flat-out", "chunk, 64 streams flat out", {"nginx": 0.95, "sglang-router": 2.1, "smg": 3.8}),
    *_speed("paced", "chunk, 200 streams × 50 a second", {"nginx": 0.85, "vllm-router": 1.05}),
    Goal(
        "added latency, p50 at 500 a second, of vllm-router's",
        "×",
        lambda all_: added_latency(all_, "rate", "vllm-router"),
        most=0.65,
    ),
    Goal(
        "memory of an open stream", "KiB", lambda all_: median(all_, "memory", OURS, "kib_per_stream"), most=8.0
    ),
    *_speed("large-body", "8 MB body", {"nginx": 0.6, "vllm-router": 2.2}),
    Goal("client gone → engine closed, the slowest", "ms", _worst("leaving", "max_ms"), most=50.0),
    Goal("client gone, missed by the engine", "clients", _worst("leaving", "missed"), most=0.0),
    Goal("10,000 streams over two workers, errors", "streams", _worst("many-streams", "errors"), most=0.0),
    Goal("errors, non-200 and short streams over all runs", "", _errors, most=0.0),
)
