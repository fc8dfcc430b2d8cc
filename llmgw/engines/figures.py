"""What an engine's own `/metrics` say of its load, by names that its adapter knows. Pure: text in, facts out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmgw.messages.agent import FIGURE_MAX, EngineFigures


@dataclass(frozen=True)
class FigureNames:
    """The metrics that tell of load, each under the names that it has had in the engine's versions.

    `cache_used` is a share of the KV cache, 1 being all of it. Empty: the engine does not say.
    """

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    cache_used: tuple[str, ...] = ()


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
        running=min(FIGURE_MAX, int(sum(running))) if running else None,
        waiting=min(FIGURE_MAX, int(sum(waiting))) if waiting else None,
        cache_used=min(1.0, max(used)) if used else None,
    )
