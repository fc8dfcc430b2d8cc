"""Which catalog rules: numbered revisions in the store, seeded once from `models:` in server.yaml."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import urlsplit

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.config.errors import SentenceError
from llmgw.messages.routes import RouteEndpoint
from llmgw.server.store.interface import StoreInterface

KEY_BYTES_MAX = 4096


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


def static_endpoints(catalog: Catalog, beside: Path | None) -> dict[str, list[RouteEndpoint]]:
    """Every model's static endpoints, their keys read from their files (relative to the configuration).

    Raises CatalogError with a sentence for a key file that cannot be read.
    """
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
                    concurrency=endpoint.concurrency,
                    weight=endpoint.weight,
                    ask_usage=endpoint.ask_usage,
                )
            )
    return found


def _read_key(model: str, file: str | None, beside: Path | None) -> str | None:
    if file is None:
        return None
    path = Path(file) if beside is None else beside.parent / file
    try:
        key = _regular_text(path).strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CatalogError(
            f"the key file {path} of model {model!r} cannot be read ({why}); "
            "make it readable or correct api_key_file"
        ) from None
    if not key or not key.isprintable() or len(key) > KEY_BYTES_MAX:
        raise CatalogError(f"the key file {path} of model {model!r} does not hold one line with a key")
    return key


def _regular_text(path: Path) -> str:
    """The beginning of a file. Whoever names a pipe or a device must not keep the server waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a file")
        return file.read(KEY_BYTES_MAX + 2).decode("ascii")
