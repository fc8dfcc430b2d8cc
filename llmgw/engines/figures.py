"""What an engine's own `/metrics` say of its load, by names that its adapter knows. Pure: text in, facts out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields

import msgspec

from llmgw.messages.agent import FIGURE_MAX, EngineFigures

Sum = tuple[str, ...]
"""Counters that make one figure together, each as `name` (all its series) or `name{label="value"}`."""

READINGS_KEPT = 16
"""Rates are over so many readings: half a minute, at one every two seconds."""


@dataclass(frozen=True)
class FigureNames:
    """The metrics that tell of load, each under the names that it has had in the engine's versions.

    `cache_used` is a share of the KV cache, 1 being all of it. Of the counters, the first of several sums whose
    first part the engine has is taken; parts that it does not have (yet) are nothing. `prompt_tokens` include
    those that were found in the prefix cache, as `prefix_hits` of `prefix_queries` were. Empty: the engine does
    not say.
    """

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    cache_used: tuple[str, ...] = ()
    prefix_queries: tuple[Sum, ...] = ()
    prefix_hits: tuple[Sum, ...] = ()
    prompt_tokens: tuple[Sum, ...] = ()
    tokens: tuple[Sum, ...] = ()
    preemptions: tuple[Sum, ...] = ()


@dataclass(frozen=True)
class Counters:
    """What an engine has counted since it started. None: it does not say."""

    prefix_queries: float | None = None
    prefix_hits: float | None = None
    prompt_tokens: float | None = None
    tokens: float | None = None
    preemptions: float | None = None


def samples(text: str, names: tuple[str, ...]) -> list[float]:
    """The values of all series of these metrics in Prometheus' text format. Raises ValueError."""
    return [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.partition("{")[0].partition(" ")[0] in names
    ]


def read_figures(text: str, names: FigureNames) -> EngineFigures | None:
    """What the engine says now; None when it says nothing of it. Raises ValueError for what is no exposition.

    An engine that runs several cores has a series for each: their requests are added up, and the fullest of
    their caches counts.
    """
    running, waiting, used = (
        [value for value in samples(text, each) if math.isfinite(value) and value >= 0.0]
        for each in (names.running, names.waiting, names.cache_used)
    )
    if not (running or waiting or used):
        return None
    return EngineFigures(
        running=int(min(FIGURE_MAX, sum(running))) if running else None,
        waiting=int(min(FIGURE_MAX, sum(waiting))) if waiting else None,
        cache_used=min(1.0, max(used)) if used else None,
    )


def read_counters(text: str, names: FigureNames) -> Counters:
    """What the engine has counted so far. Raises ValueError for what is no exposition."""
    wanted = {field.name: getattr(names, field.name) for field in fields(Counters)}
    selectors = {selector for sums in wanted.values() for each in sums for selector in each}
    totals = _totals(text, selectors)
    return Counters(**{name: _first_there(sums, totals) for name, sums in wanted.items()})


class FigureHistory:
    """The last readings of one engine's counters, of which its rates are made.

    A counter that falls was begun anew, as by an engine that is another one now: what was before is forgotten.
    """

    def __init__(self) -> None:
        self._readings: deque[tuple[float, Counters]] = deque(maxlen=READINGS_KEPT)

    def take(self, figures: EngineFigures, counters: Counters, now: float) -> EngineFigures:
        """The figures with the rates since the oldest reading that is kept; `now` is in seconds, of any clock
        that never runs backwards."""
        if self._readings and _fell(self._readings[-1][1], counters):
            self._readings.clear()
        since = self._readings[0] if self._readings else None
        self._readings.append((now, counters))
        if since is None or now <= since[0]:
            return figures
        passed_s, before = now - since[0], since[1]

        def rate(name: str) -> float | None:
            grown = _grown(getattr(before, name), getattr(counters, name))
            return min(float(FIGURE_MAX), grown / passed_s) if grown is not None else None

        queries = _grown(before.prefix_queries, counters.prefix_queries)
        hits = _grown(before.prefix_hits, counters.prefix_hits)
        return msgspec.structs.replace(
            figures,
            # The two are counted one after the other: a reading may come between.
            prefix_hits=min(1.0, hits / queries) if queries and hits is not None else None,
            prompt_tokens_per_s=rate("prompt_tokens"),
            tokens_per_s=rate("tokens"),
            preemptions_per_s=rate("preemptions"),
        )

    def forget(self) -> None:
        """Readings failed in between: a rate over the gap would tell of another time."""
        self._readings.clear()


def _totals(text: str, selectors: Iterable[str]) -> dict[str, float]:
    """Selector → the sum of its series, of those that there are."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for selector in selectors:
        name, _, label = selector.partition("{")
        by_name.setdefault(name, []).append((selector, label.removesuffix("}")))
    totals: dict[str, float] = {}
    for line in text.splitlines():
        series = line.rpartition(" ")[0]
        name, _, labels = series.partition("{")
        for selector, label in by_name.get(name.partition(" ")[0], ()):
            # Labels stand in no order; one may end as another does (`le="1"`, `tile="1"`).
            if label and f",{label}" not in f",{labels}":
                continue
            value = float(line.rpartition(" ")[2])
            if math.isfinite(value) and value >= 0.0:
                totals[selector] = totals.get(selector, 0.0) + value
    return totals


def _first_there(sums: tuple[Sum, ...], totals: dict[str, float]) -> float | None:
    for each in sums:
        if each[0] in totals:
            return sum(totals.get(selector, 0.0) for selector in each)
    return None


def _grown(before: float | None, now: float | None) -> float | None:
    return now - before if before is not None and now is not None else None


def _fell(before: Counters, now: Counters) -> bool:
    grown = (_grown(getattr(before, field.name), getattr(now, field.name)) for field in fields(Counters))
    return any(each is not None and each < 0 for each in grown)
