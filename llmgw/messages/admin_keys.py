"""API keys as the admin API says them: shapes only ever added to. Times are seconds since the epoch (UTC)."""

from __future__ import annotations

import msgspec

from llmgw.messages.secrets import shown_without

KEY_BEGINS = "llmgw-"
"""Every key is this, its id, a dash, and its secret."""


def key_prefix(key_id: str) -> str:
    """What a key is recognised by: it may be shown, unlike the rest of the key."""
    return f"{KEY_BEGINS}{key_id}"


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. `models` are the only ones it may ask for, null: all; a limit of null is none."""

    name: str
    id: str
    prefix: str
    """What the key begins with."""
    models: list[str] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    priority: int = 0
    created_at: float
    created_by: str
    expires_at: float | None = None
    expired: bool = False
    last_used_at: float | None = None


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key just made: the only time that it is shown."""

    name: str
    id: str
    key: str

    def __repr__(self) -> str:
        return shown_without(self, "key")


class CreateKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/keys`."""

    name: str
    models: list[str] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    priority: int = 0
    expires_at: float | None = None


class LimitKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/keys/{name}/limit`: what is left out stays as it is, null takes a limit away."""

    models: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    requests_per_minute: int | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_minute: int | msgspec.UnsetType | None = msgspec.UNSET
    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    priority: int | msgspec.UnsetType = msgspec.UNSET
    expires_at: float | msgspec.UnsetType | None = msgspec.UNSET
