"""The plan of a catalog before it rules: what changes, what starts, stops and rolls, and what finds no place."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.config.catalog import Catalog
from llmgw.fleet.catalog_diff import endpoints, model_keys, profile_keys, rolled_by
from llmgw.fleet.foresight import Foresight, foresee, outdated
from llmgw.fleet.model import Fleet, ReplicaState
from llmgw.fleet.placement import never, place
from llmgw.fleet.room import Room, Wanted
from llmgw.fleet.sets import replacement_of
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.admin import CatalogPlan, ModelPlan, ProfilePlan

STOPS_UNASKED_MAX = 0.2
"""A revision that would stop more than this share of the ready replicas is not taken without being asked for."""


@dataclass(frozen=True, slots=True)
class Stops:
    """How many of the ready replicas a catalog ends with none in their place, and whether that must be asked."""

    ready: int
    stopped: int
    confirm: str | None
    """Why somebody must say yes first, or None."""


def ready_stops(fleet: Fleet, before: Catalog, after: Catalog) -> Stops:
    """The one judgement of how much a catalog stops: for `apply`, `rollback`, `scale` and SIGHUP."""
    ready = [replica for replica in fleet.replicas.values() if replica.state is ReplicaState.READY]
    by_profile: dict[tuple[str, str], int] = {}
    for replica in ready:
        # One whose replacement is there already leaves anyway.
        taken_over = replacement_of(fleet, replica)
        if taken_over is None or taken_over.state is not ReplicaState.READY:
            key = (replica.model, replica.profile)
            by_profile[key] = by_profile.get(key, 0) + 1
    stopped = sum(max(0, count - _wanted(after, *key)) for key, count in by_profile.items())
    confirm = None
    if before.models and not after.models:
        confirm = f"the catalog would be empty: everything is stopped, {len(ready)} ready replicas among it"
    elif stopped > STOPS_UNASKED_MAX * len(ready):
        confirm = f"it would stop {stopped} of {len(ready)} ready replicas, more than {STOPS_UNASKED_MAX:.0%}"
    elif fleet.settling and any(
        profile.replicas > _wanted(after, model.name, profile.name)
        for model in before.models
        for profile in model.profiles
    ):
        confirm = (
            "the server has just started and does not know yet what is ready, "
            "so it cannot say how much of it this would stop"
        )
    return Stops(len(ready), stopped, confirm)


def plan_catalog(
    fleet: Fleet, before: Catalog, after: Catalog, *, base: int, now: float, settings: FleetSettings
) -> CatalogPlan:
    """What `after` would do to the fleet that `before` rules as revision `base`. Pure; the fleet is left alone.

    Costs a run of the core for every replica of a model that rolls: call it off the event loop for a large fleet,
    on a copy (`foresight.copied`).
    """
    stops = ready_stops(fleet, before, after)
    ahead = foresee(fleet, after, now, settings)
    look = _Look(fleet, ahead, before, after, Room.of(ahead.fleet), _live(fleet), _live(ahead.fleet))
    models = []
    for name in dict.fromkeys([*after.by_name, *before.by_name]):
        planned = _model(look, name)
        if planned.change != "unchanged" or planned.profiles:
            models.append(planned)
    profiles = [(model.name, profile) for model in models for profile in model.profiles]
    return CatalogPlan(
        base=base,
        unchanged=before == after,
        models=models,
        models_unchanged=len(after.by_name.keys() - {model.name for model in models}),
        starts=sum(profile.starts for _, profile in profiles),
        stops=sum(profile.stops for _, profile in profiles),
        rolls=sum(profile.rolls for _, profile in profiles),
        ready=stops.ready,
        ready_stopped=stops.stopped,
        confirm=stops.confirm,
        warnings=_warnings(fleet, profiles),
    )


def _warnings(fleet: Fleet, profiles: list[tuple[str, ProfilePlan]]) -> list[str]:
    warnings = []
    if fleet.settling:
        warnings.append(
            "the server has just started and waits for its nodes, so what starts, stops and rolls, and what "
            "finds a place, is not known yet; make the plan again when settling is over (llmgw ctl status)"
        )
    for model, profile in profiles:
        if profile.never is not None:
            warnings.append(f"{model}/{profile.name}: no node known today could ever host it: {profile.never}")
        elif profile.unplaced:
            what = "replica finds" if profile.unplaced == 1 else "replicas find"
            warnings.append(f"{model}/{profile.name}: {profile.unplaced} {what} no place now: {profile.reason}")
    return warnings


@dataclass(frozen=True, slots=True)
class _Look:
    """The two catalogs, the fleet now and as foreseen, and its live replicas by profile."""

    fleet: Fleet
    ahead: Foresight
    before: Catalog
    after: Catalog
    room: Room
    there: dict[tuple[str, str], set[str]]
    then: dict[tuple[str, str], set[str]]


def _model(look: _Look, name: str) -> ModelPlan:
    old, new = look.before.by_name.get(name), look.after.by_name.get(name)
    keys = model_keys(old, new) if old is not None and new is not None else []
    static = endpoints(old, new)
    names = [profile.name for model in (new, old) if model is not None for profile in model.profiles]
    profiles = [_profile(look, name, profile) for profile in dict.fromkeys(names)]
    differs = (
        bool(keys or static.added or static.removed or static.changed)
        or (old is not None and new is not None and old.endpoints != new.endpoints)
        or any(profile.change != "unchanged" for profile in profiles)
    )
    return ModelPlan(
        name=name,
        change=_change(old, new, differs),
        keys=keys,
        endpoints_added=static.added,
        endpoints_removed=static.removed,
        endpoints_changed=static.changed,
        profiles=[profile for profile in profiles if _tells(profile)],
    )


def _profile(look: _Look, model: str, name: str) -> ProfilePlan:
    old, new = look.before.find(model, name), look.after.find(model, name)
    both = (old, new) if old is not None and new is not None else None
    by = rolled_by(*both) if both else []
    keys = profile_keys(*both) if both else []
    replicas_before, replicas_after = (_wanted(catalog, model, name) for catalog in (look.before, look.after))
    change = _change(old, new, bool(by or keys) or replicas_before != replicas_after)
    there, then = (by_profile.get((model, name), set()) for by_profile in (look.there, look.then))
    gone, come = there - then, then - there
    rolled = min(len(gone), len(come))
    starts = len(come) - rolled
    # What must be replaced and was not: there is no room, or it was not looked so far ahead.
    left = sum(outdated(look.ahead.fleet, look.after, look.ahead.fleet.replicas[item]) for item in there & then)
    unplaced, later, reason, impossible = 0, 0, None, None
    if new is not None:
        wanted = Wanted(model, new[1])
        if not look.fleet.settling:
            unplaced = max(0, replicas_after - len(then)) + (left if look.ahead.complete else 0)
            later = max(0, starts - len(come & look.ahead.started_at_once))
        if unplaced:
            reason = place(look.ahead.fleet, wanted, look.room).reason or None
        elif later:
            reason = "there is room when others have stopped"
        if unplaced or look.fleet.settling or (change != "unchanged" and not replicas_after):
            impossible = never(look.fleet, wanted)
    return ProfilePlan(
        name=name,
        change=change,
        replicas_before=replicas_before,
        replicas_after=replicas_after,
        rolled_by=by,
        keys=[key for key in keys if key not in by],
        starts=starts,
        stops=len(gone) - rolled,
        rolls=rolled + left,
        later=later,
        unplaced=unplaced,
        reason=reason,
        never=impossible,
    )


def _tells(plan: ProfilePlan) -> bool:
    """Whether a profile belongs into the plan: it changes, or something happens to it, or cannot happen."""
    moves = plan.starts or plan.stops or plan.rolls or plan.unplaced
    return bool(plan.change != "unchanged" or moves or plan.never is not None)


def _change(old: object | None, new: object | None, differs: bool) -> str:
    return "added" if old is None else "removed" if new is None else "changed" if differs else "unchanged"


def _live(fleet: Fleet) -> dict[tuple[str, str], set[str]]:
    """(model, profile) → its live replicas, without those that another is taking the place of already."""
    replaced = {replica.replaces for replica in fleet.replicas.values() if replica.live}
    found: dict[tuple[str, str], set[str]] = {}
    for replica in fleet.replicas.values():
        if replica.live and replica.replica_id not in replaced:
            found.setdefault((replica.model, replica.profile), set()).add(replica.replica_id)
    return found


def _wanted(catalog: Catalog, model: str, profile: str) -> int:
    found = catalog.find(model, profile)
    return found[1].replicas if found is not None else 0
