"""What the page of a model says, put together from the backend's views. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmgw.messages.admin import ExplainProfile, ModelView, ProfileView, ReplicaView
from llmgw.messages.findings import Finding
from llmgw.messages.recent_views import ModelSeries, RatePoint
from llmgw.server.pages import charts, numbers

SPAN_S = 3600.0

Words = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class ProfileFacts:
    """One profile: its counts, placement's explanation, and how far its rollout is."""

    view: ProfileView
    why: ExplainProfile | None
    rollout: str | None
    """A sentence while replicas of an earlier form are there."""


def profiles_of(model: ModelView, why: list[ExplainProfile], replicas: list[ReplicaView]) -> list[ProfileFacts]:
    """The profiles in the catalog's order. `replicas` are all of the model's."""
    explained = {each.name: each for each in why}
    return [
        ProfileFacts(
            view=view,
            why=explained.get(view.name),
            rollout=_rollout(view, [each for each in replicas if each.profile == view.name]),
        )
        for view in model.profiles
    ]


def _rollout(view: ProfileView, replicas: list[ReplicaView]) -> str | None:
    serving = [each for each in replicas if each.state in ("starting", "ready", "adopting")]
    old = [each.replica_id for each in serving if each.outdated]
    if not old:
        return None
    new = len(serving) - len(old)
    moves = [f"{each.replica_id} replaces {each.replaces}" for each in serving if each.replaces in old]
    said = f"{new} of {view.wanted} run the catalog's form, {len(old)} an earlier one"
    return f"{said}; {', '.join(moves)}" if moves else said


def findings_of(findings: list[Finding], model: ModelView, replicas: list[ReplicaView]) -> list[Finding]:
    """Those of the model, of a profile of it, or of one of its replicas."""
    places = {model.name, *(f"{model.name}/{profile.name}" for profile in model.profiles)}
    places |= {replica.replica_id for replica in replicas}
    return [finding for finding in findings if finding.where in places]


def limits_of(models: list[dict[str, Any]], name: str) -> list[tuple[str, str]]:
    """The limits that a catalog sets for a model, as (key, words). `models` is the catalog as the API has it."""
    limits = next((each.get("limits") or {} for each in models if each.get("name") == name), {})
    words: dict[str, Callable[[Any], str]] = {
        "waiting": numbers.whole,
        "kv_cache": numbers.percent,
        "ttft_p95": str,
    }
    return [(key, words[key](limits[key])) for key in words if limits.get(key) is not None]


def charts_of(series: ModelSeries) -> list[charts.Chart]:
    """The last hour: requests with errors, time to the first token, tokens."""
    # The newest step has not ended: it would look as if everything had just fallen.
    points, step_s = series.points[:-1], series.step_s
    until = series.points[-1].at if series.points else SPAN_S
    times = [point.at for point in points]

    def drawn(
        key: str, title: str, unit: str, lines: list[charts.Series], words: Words, fold: charts.Fold
    ) -> charts.Chart:
        return charts.draw(
            key, title, unit, times, lines, until=until, span_s=SPAN_S, step_s=step_s, words=words, fold=fold
        )

    def per_s(name: str, what: Callable[[RatePoint], int]) -> charts.Series:
        return charts.Series(name=name, values=[what(point) / step_s for point in points])

    requests = [per_s("all", lambda point: point.requests), per_s("errors (5xx)", lambda point: point.errors)]
    first = [
        charts.Series(name="p95", values=[point.first_byte_p95_s for point in points]),
        charts.Series(name="p50", values=[point.first_byte_p50_s for point in points]),
    ]
    tokens = [per_s("answered", lambda point: point.tokens), per_s("read", lambda point: point.prompt_tokens)]
    return [
        drawn("requests", "Requests", "requests per second", requests, numbers.per_s, charts.mean),
        drawn("first-token", "Time to first token", "seconds", first, numbers.seconds, max),
        drawn("tokens", "Tokens", "tokens per second", tokens, numbers.per_s, charts.mean),
    ]
