"""Which catalog rules: numbered revisions in the store, seeded once from `models:` in server.yaml."""

from __future__ import annotations

from pathlib import Path

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.config.errors import SentenceError
from llmgw.fleet.model import Fleet, ReplicaState
from llmgw.messages.routes import RouteEndpoint
from llmgw.server.store.interface import StoreInterface

STOPS_UNASKED_MAX = 0.2
"""A revision that would stop more than this share of the ready replicas is not taken without being asked for."""


class CatalogError(SentenceError):
    """A catalog that cannot rule."""


async def ruling_catalog(store: StoreInterface, seed: Catalog, now: float) -> tuple[int, Catalog, str | None]:
    """The newest revision, and a sentence when `seed` differs from it. An empty store takes the seed."""
    latest = await store.latest_catalog()
    if latest is None:
        number = await store.add_catalog_revision(seed, "server.yaml", "seeded an empty store", now)
        return number, seed, None
    number, catalog = latest
    if catalog == seed:
        return number, catalog, None
    return (
        number,
        catalog,
        f"models in the configuration differ from catalog revision {number}, which rules; "
        f"send this process SIGHUP to make them revision {number + 1}",
    )


def scaled(catalog: Catalog, model: CatalogModel, profile: Profile, replicas: int) -> Catalog:
    """The catalog with another replica count for one profile."""
    profiles = [
        candidate.model_copy(update={"replicas": replicas}) if candidate.name == profile.name else candidate
        for candidate in model.profiles
    ]
    changed = CatalogModel.model_validate({**model.model_dump(), "profiles": [p.model_dump() for p in profiles]})
    return Catalog(models=[changed if other.name == model.name else other for other in catalog.models])


def stops_too_many(fleet: Fleet, catalog: Catalog) -> str | None:
    """A sentence when the catalog would stop more than a fifth of the ready replicas, or None."""
    ready = [replica for replica in fleet.replicas.values() if replica.state is ReplicaState.READY]
    stopped = 0
    by_profile: dict[tuple[str, str], int] = {}
    for replica in ready:
        key = (replica.model, replica.profile)
        by_profile[key] = by_profile.get(key, 0) + 1
    for (model, profile), count in by_profile.items():
        found = catalog.find(model, profile)
        stopped += max(0, count - (found[1].replicas if found is not None else 0))
    if stopped <= STOPS_UNASKED_MAX * len(ready):
        return None
    return f"it would stop {stopped} of {len(ready)} ready replicas, more than {STOPS_UNASKED_MAX:.0%}"


def static_endpoints(catalog: Catalog, beside: Path | None) -> dict[str, list[RouteEndpoint]]:
    """Every model's static endpoints, their keys read from their files (relative to the configuration).

    Raises CatalogError with a sentence for a key file that cannot be read.
    """
    from urllib.parse import urlsplit

    found: dict[str, list[RouteEndpoint]] = {}
    for model in catalog.models:
        for number, endpoint in enumerate(model.endpoints):
            parts = urlsplit(endpoint.url)
            tls = parts.scheme == "https"
            found.setdefault(model.name, []).append(
                RouteEndpoint(
                    id=f"static:{model.name}:{number}",
                    host=parts.hostname or "",
                    port=parts.port or (443 if tls else 80),
                    tls=tls,
                    base_path=parts.path.rstrip("/"),
                    api_key=_read_key(model.name, endpoint.api_key_file, beside),
                    upstream_model=endpoint.model,
                )
            )
    return found


def _read_key(model: str, file: str | None, beside: Path | None) -> str | None:
    if file is None:
        return None
    path = Path(file) if beside is None else beside.parent / file
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise CatalogError(
            f"the key file {path} of model {model!r} cannot be read ({why}); "
            "make it readable or correct api_key_file"
        ) from None
    if not key or not key.isprintable() or len(key) > 4096:
        raise CatalogError(f"the key file {path} of model {model!r} does not hold one line with a key")
    return key
