"""How two catalogs differ, key by key, and which of the keys change the form in which a replica runs."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.config.catalog import CatalogModel, Profile, StaticEndpoint

_BELOW = {"name", "profiles", "endpoints"}


@dataclass(frozen=True, slots=True)
class EndpointsDiff:
    """Static endpoints by their URLs."""

    added: list[str]
    removed: list[str]
    changed: list[str]


def model_keys(before: CatalogModel, after: CatalogModel) -> list[str]:
    """Keys of the model itself that differ."""
    return _differing(before, after, _BELOW)


def profile_keys(before: tuple[CatalogModel, Profile], after: tuple[CatalogModel, Profile]) -> list[str]:
    """Keys of the profile that differ, but for the number of replicas."""
    return _differing(before[1], after[1], {"name", "replicas"})


def rolled_by(before: tuple[CatalogModel, Profile], after: tuple[CatalogModel, Profile]) -> list[str]:
    """Keys of profile and model that differ and that the running form depends on; none when it stays the same.

    What the form depends on is asked of the hash itself: each key is changed alone.
    """
    if form(*before) == form(*after):
        return []
    found = []
    for key in profile_keys(before, after):
        alone = before[1].model_copy(update={key: getattr(after[1], key)})
        if form(before[0], alone) != form(*before):
            found.append(key)
    for key in model_keys(before[0], after[0]):
        values = {name: getattr(before[0], name) for name in CatalogModel.model_fields}
        changed = CatalogModel.model_construct(**{**values, key: getattr(after[0], key)})
        if form(changed, before[1]) != form(*before):
            found.append(key)
    return found


def form(model: CatalogModel, profile: Profile) -> str:
    """The hash of the form in which a profile of the model runs."""
    values = {name: getattr(model, name) for name in CatalogModel.model_fields}
    return CatalogModel.model_construct(**{**values, "profiles": [profile]}).profile_hashes[profile.name]


def endpoints(before: CatalogModel | None, after: CatalogModel | None) -> EndpointsDiff:
    """Which static endpoints came, went, and changed."""
    old = _by_url(before)
    new = _by_url(after)
    return EndpointsDiff(
        added=[url for url in new if url not in old],
        removed=[url for url in old if url not in new],
        changed=[url for url in new if url in old and new[url] != old[url]],
    )


def _by_url(model: CatalogModel | None) -> dict[str, list[StaticEndpoint]]:
    found: dict[str, list[StaticEndpoint]] = {}
    for endpoint in model.endpoints if model is not None else ():
        found.setdefault(endpoint.url, []).append(endpoint)
    return found


def _differing(before: CatalogModel | Profile, after: CatalogModel | Profile, leave_out: set[str]) -> list[str]:
    return [
        key
        for key in type(before).model_fields
        if key not in leave_out and getattr(before, key) != getattr(after, key)
    ]
