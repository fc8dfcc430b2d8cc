"""What the store keeps of an API key. Times are seconds since the epoch (UTC)."""

from __future__ import annotations

import msgspec


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key that is not revoked, with the hash of the whole key.

    `id` is its own for ever, unlike `name`, which may be given again once the key is revoked. `models` are the
    only ones it may ask for, None: all. None for a limit sets none.
    """

    id: str
    name: str
    secret_hash: str
    """SHA-256 in hex."""
    created_at: float
    created_by: str
    models: list[str] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    priority: int = 0
    expires_at: float | None = None
    last_used_at: float | None = None


class KeptKeys(msgspec.Struct, kw_only=True):
    """The keys as memory holds them."""

    live: dict[str, KeyRecord] = {}
    """Id → record; revoked ones are not in it."""
    any_made: bool = False
    """True once a key has been made, be it revoked since."""
