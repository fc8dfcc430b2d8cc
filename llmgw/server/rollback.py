"""A rollout that the core has stopped is taken back: the old form of the model becomes the next revision."""

from __future__ import annotations

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.actions import StopRollout
from llmgw.server.catalog_owner import CatalogOwner
from llmgw.server.store.interface import StoreInterface

REVISIONS_LOOKED_AT = 100


async def roll_back(owner: CatalogOwner, store: StoreInterface, stopped: StopRollout) -> int | None:
    """Make a revision in which the model is as it was in its good form, with today's replica counts.

    Returns its number, or None when no kept revision has that form or the catalog has moved on meanwhile.
    """
    old = await _model_with(store, stopped)
    if old is None:
        return None

    def edit(catalog: Catalog) -> Catalog:
        found = catalog.find(stopped.model, stopped.profile)
        if found is None or found[0].profile_hashes[stopped.profile] != stopped.bad_form:
            return catalog
        model = _with_counts(old, found[0])
        return Catalog(models=[model if other.name == model.name else other for other in catalog.models])

    note = f"rollback of {stopped.model}/{stopped.profile}: {stopped.reason}"
    # Nothing that serves is stopped by it: the old form is what serves.
    number = await owner.change(edit, "llmgw", note[:500], confirmed=True)
    if number is not None and number == owner.revision:
        owner.taken_back = note[:500]
    return number


async def _model_with(store: StoreInterface, stopped: StopRollout) -> CatalogModel | None:
    for entry in await store.catalog_revisions(limit=REVISIONS_LOOKED_AT):
        catalog = await store.catalog_revision(entry.number)
        found = catalog.find(stopped.model, stopped.profile) if catalog is not None else None
        if found is not None and found[0].profile_hashes[stopped.profile] == stopped.good_form:
            return found[0]
    return None


def _with_counts(old: CatalogModel, now: CatalogModel) -> CatalogModel:
    counts = {profile.name: profile.replicas for profile in now.profiles}

    def counted(profile: Profile) -> Profile:
        return profile.model_copy(update={"replicas": counts.get(profile.name, profile.replicas)})

    return old.model_copy(update={"profiles": [counted(profile) for profile in old.profiles]})
