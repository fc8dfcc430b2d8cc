"""Counts each model's requests in steps of ten seconds, of which the last hour is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from llmgw.messages.recent_views import ModelRates, ModelSeries, RatePoint
from llmgw.messages.routes import Outcome
from llmgw.metrics.family import OTHER
from llmgw.server.recent.durations import Counts, count, percentile_s

STEP_S = 10.0
STEPS_KEPT = 360
WINDOW_S = 60.0


@dataclass(slots=True)
class _Step:
    number: int
    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    first_byte: Counts = field(default_factory=dict)
    total: Counts = field(default_factory=dict)


class RecentRates:
    """Fed with the routers' outcomes. `now` is of a clock that never runs backwards, in seconds, everywhere.

    Bounded: a series for each model of the catalog and one for the rest, of `STEPS_KEPT` steps each.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._models: dict[str, deque[_Step]] = {}

    def take(self, outcomes: Iterable[Outcome], known: Collection[str], now: float) -> None:
        """Count outcomes. `known` are the catalog's models; what names another is counted together."""
        for name in [name for name in self._models if name not in known and name != OTHER]:
            del self._models[name]
        for outcome in outcomes:
            step = self._step(outcome.model if outcome.model in known else OTHER, now)
            step.requests += 1
            step.errors += outcome.status >= 500
            step.prompt_tokens += outcome.prompt_tokens or 0
            step.tokens += outcome.completion_tokens or 0
            if outcome.first_byte_s is not None:
                count(step.first_byte, outcome.first_byte_s)
            if outcome.model:  # what was refused before its model was known took no time that is anybody's
                count(step.total, outcome.total_s)

    def rates(self, model: str, now: float, *, in_flight: int = 0, queued: int = 0) -> ModelRates:
        """What the last minute was like; of a server that has just started, what there is of it."""
        first = int(now // STEP_S) - int(WINDOW_S // STEP_S)
        steps = [step for step in self._models.get(model, ()) if step.number >= first]
        window_s = max(1.0, now - max(first * STEP_S, self._began))
        first_byte, total = _sum(step.first_byte for step in steps), _sum(step.total for step in steps)
        return ModelRates(
            model=model,
            window_s=window_s,
            requests_per_s=sum(step.requests for step in steps) / window_s,
            errors_per_s=sum(step.errors for step in steps) / window_s,
            prompt_tokens_per_s=sum(step.prompt_tokens for step in steps) / window_s,
            tokens_per_s=sum(step.tokens for step in steps) / window_s,
            first_byte_p50_s=percentile_s(first_byte, 0.5),
            first_byte_p95_s=percentile_s(first_byte, 0.95),
            total_p50_s=percentile_s(total, 0.5),
            total_p95_s=percentile_s(total, 0.95),
            in_flight=in_flight,
            queued=queued,
        )

    def first_byte_p95(self, model: str, now: float) -> tuple[float | None, int]:
        """How long 95 in 100 requests waited for a first byte at most, and how many had one, lately."""
        first = int(now // STEP_S) - int(WINDOW_S // STEP_S)
        counts = _sum(step.first_byte for step in self._models.get(model, ()) if step.number >= first)
        return percentile_s(counts, 0.95), sum(counts.values())

    def series(self, model: str, now: float, wall: float) -> ModelSeries:
        """The last hour, or since the server started. `wall` is the time of day at `now`."""
        last = int(now // STEP_S)
        first = max(last - STEPS_KEPT + 1, int(self._began // STEP_S))
        there = {step.number: step for step in self._models.get(model, ())}
        points = []
        for number in range(first, last + 1):
            step = there.get(number) or _Step(number)
            points.append(
                RatePoint(
                    at=wall - (now - number * STEP_S),
                    requests=step.requests,
                    errors=step.errors,
                    prompt_tokens=step.prompt_tokens,
                    tokens=step.tokens,
                    first_byte_p50_s=percentile_s(step.first_byte, 0.5),
                    first_byte_p95_s=percentile_s(step.first_byte, 0.95),
                    total_p50_s=percentile_s(step.total, 0.5),
                    total_p95_s=percentile_s(step.total, 0.95),
                )
            )
        return ModelSeries(model=model, step_s=STEP_S, points=points)

    def _step(self, model: str, now: float) -> _Step:
        steps = self._models.get(model)
        if steps is None:
            steps = self._models[model] = deque(maxlen=STEPS_KEPT)
        number = int(now // STEP_S)
        if not steps or steps[-1].number != number:
            steps.append(_Step(number))
        return steps[-1]


def _sum(all_counts: Iterable[Counts]) -> Counts:
    found: Counts = {}
    for counts in all_counts:
        for bucket, number in counts.items():
            found[bucket] = found.get(bucket, 0) + number
    return found
