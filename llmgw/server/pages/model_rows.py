"""The models as the overview lists them: what is wanted, what there is, and what its requests do. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmgw.messages.admin import ModelView
from llmgw.messages.recent_views import ModelRates
from llmgw.server.pages.addresses import model_url
from llmgw.server.pages.node_words import Badge


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model. `rates` is None where nobody has told of any."""

    name: str
    href: str
    state: Badge
    static: int
    wanted: int
    ready: int
    starting: int
    failed: int
    reasons: list[str]
    """Why fewer than wanted are ready, a sentence for each profile."""
    rates: ModelRates | None


def model_rows(models: Iterable[ModelView], rates: Iterable[ModelRates]) -> list[ModelRow]:
    """Every model: those that serve nobody first, then those that lack something, then by name."""
    of = {each.model: each for each in rates}
    rows = [_row(model, of.get(model.name)) for model in models]
    order = ("bad", "warn", "good", "quiet")
    return sorted(rows, key=lambda row: (order.index(row.state.tone), row.name))


def _row(model: ModelView, rates: ModelRates | None) -> ModelRow:
    several = len(model.profiles) > 1
    return ModelRow(
        name=model.name,
        href=model_url(model.name),
        state=_state(model),
        static=len(model.static_endpoints),
        wanted=sum(profile.wanted for profile in model.profiles),
        ready=sum(profile.ready for profile in model.profiles),
        starting=sum(profile.starting for profile in model.profiles),
        failed=sum(profile.failed for profile in model.profiles),
        reasons=[
            f"{profile.name}: {profile.reason}" if several else profile.reason
            for profile in model.profiles
            if profile.reason
        ],
        rates=rates,
    )


def _state(model: ModelView) -> Badge:
    wanted = sum(profile.wanted for profile in model.profiles)
    ready = sum(profile.ready for profile in model.profiles)
    starting = sum(profile.starting for profile in model.profiles)
    if not wanted and not model.static_endpoints:
        return Badge("quiet", "scaled to 0")
    if not model.endpoints_ready and not ready:
        return Badge("warn", "starting") if starting else Badge("bad", "serves nobody")
    if ready < wanted:
        return Badge("warn", f"{wanted - ready} missing")
    return Badge("good", "ready")
