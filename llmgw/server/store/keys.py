"""The part of the store that keeps API keys. What is asked is answered from memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from sqlalchemy import Connection

from llmgw.server.store import key_rows
from llmgw.server.store.key_records import KeptKeys, KeyRecord
from llmgw.server.store.queue import Write

KEYS_MAX = 10_000
"""So many may there be that are not revoked: each of them is in every route table."""
KEY_TOUCH_S = 60.0  # `last used` is written at most this often for each key

T = TypeVar("T")


class Committer(Protocol):
    """Carries a write out, and gives its result to `then` at the commit. Raises StoreError."""

    def __call__(self, apply: Callable[[Connection], T], then: Callable[[T], None]) -> Awaitable[T]: ...


class KeyStore:
    """Made by the store."""

    def __init__(self, kept: KeptKeys, enqueue: Callable[[Write], None], commit: Committer) -> None:
        self._kept = kept
        self._enqueue = enqueue
        self._commit = commit

    @property
    def any_made(self) -> bool:
        """True once a key has been made, be it revoked since."""
        return self._kept.any_made

    def all(self) -> list[KeyRecord]:
        """Every key that is not revoked, by name."""
        return sorted(self._kept.live.values(), key=lambda key: key.name)

    def named(self, name: str) -> KeyRecord | None:
        """The key of this name."""
        return next((key for key in self._kept.live.values() if key.name == name), None)

    def get(self, key_id: str) -> KeyRecord | None:
        """The key of this id."""
        return self._kept.live.get(key_id)

    async def create(self, key: KeyRecord) -> None:
        """Keep a new key, once it is committed. Raises StoreError for a name in use."""

        def keep(_created: None) -> None:
            self._kept.live[key.id] = key
            self._kept.any_made = True

        await self._commit(partial(key_rows.create_key, key=key), keep)

    async def change(self, key: KeyRecord) -> None:
        """Keep what a key may do from now on, once it is committed. Raises StoreError."""

        def keep(_changed: None) -> None:
            known = self._kept.live.get(key.id)
            if known is not None:
                self._kept.live[key.id] = msgspec.structs.replace(key, last_used_at=known.last_used_at)

        await self._commit(partial(key_rows.update_key, key=key), keep)

    def revoke(self, key_id: str, now: float) -> None:
        """Forget a key from this moment on. It is written behind what waits already, and tried until it is."""
        self._kept.live.pop(key_id, None)
        self._enqueue(Write(apply=partial(key_rows.revoke_key, key_id=key_id, now=now)))

    def touch(self, key_id: str, now: float) -> None:
        """A key was used. Written at most once in `KEY_TOUCH_S` seconds for each key."""
        key = self._kept.live.get(key_id)
        if key is None or (key.last_used_at is not None and now - key.last_used_at < KEY_TOUCH_S):
            return
        self._kept.live[key_id] = msgspec.structs.replace(key, last_used_at=now)
        self._enqueue(Write(apply=partial(key_rows.touch_key, key_id=key_id, now=now), touch=f"key {key_id}"))
