"""The API keys as the admin API sees them: every change is stored, told to the routers, and kept in history."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from difflib import get_close_matches

import msgspec

from llmgw.config.random_words import new_secret_word
from llmgw.messages.admin import Done
from llmgw.messages.admin_keys import CreateKey, KeyView, LimitKey, NewKey, key_prefix
from llmgw.server.admin.backend import AdminError
from llmgw.server.hub import Hub
from llmgw.server.store.errors import StoreError
from llmgw.server.store.interface import COMMIT_WAIT_S, StoreInterface
from llmgw.server.store.key_records import KeyRecord
from llmgw.server.store.keys import KEYS_MAX
from llmgw.server.store.secrets import hash_secret, name_problem

NAMES_SHOWN_MAX = 20
ID_BYTES = 5
NOTE_USED_S = 5.0


class KeyOwner:
    """`AdminKeys` over the hub and the store."""

    def __init__(self, hub: Hub, store: StoreInterface) -> None:
        self._hub = hub
        self._store = store

    def views(self) -> list[KeyView]:
        """Every key that is not revoked, by name."""
        self.note_used()
        now = self._now()
        return [_view(key, now) for key in self._store.api_keys.all()]

    async def create(self, wish: CreateKey, *, by: str) -> NewKey:
        """A new key; it is in this answer and nowhere else."""
        problem = name_problem(wish.name, "key")
        if problem is not None:
            raise AdminError(400, "bad-name", problem)
        if self._store.api_keys.named(wish.name) is not None:
            raise _exists(wish.name)
        if len(self._store.api_keys.all()) >= KEYS_MAX:
            raise AdminError(
                409, "too-many", f"there are {KEYS_MAX} keys already; revoke those that are not used any more"
            )
        self._check_expiry(wish.expires_at)
        key_id = secrets.token_hex(ID_BYTES)
        key = f"{key_prefix(key_id)}-{new_secret_word()}"
        record = KeyRecord(
            id=key_id,
            name=wish.name,
            secret_hash=hash_secret(key),
            created_at=self._now(),
            created_by=by,
            models=self._known_models(wish.models),
            requests_per_minute=wish.requests_per_minute,
            tokens_per_minute=wish.tokens_per_minute,
            concurrency=wish.concurrency,
            priority=wish.priority,
            expires_at=wish.expires_at,
        )
        try:
            await self._store.api_keys.create(record)
        except StoreError as error:
            if self._store.api_keys.named(wish.name) is not None:  # somebody was quicker
                raise _exists(wish.name) from None
            raise AdminError(503, "store", f"no key was made: {error}") from None
        self._tell()
        self._record(record, "key created", f"by {by}: {rules_words(record)}")
        return NewKey(name=record.name, id=key_id, key=key)

    async def limit(self, name: str, wish: LimitKey, *, by: str) -> Done:
        """Change what a key may do."""
        before = self._named(name)
        given = {
            field: value
            for field in wish.__struct_fields__
            if (value := getattr(wish, field)) is not msgspec.UNSET
        }
        if not given:
            raise AdminError(400, "nothing-to-do", "nothing was named that should change")
        if "models" in given:
            given["models"] = self._known_models(given["models"])
        self._check_expiry(given.get("expires_at"))
        after = msgspec.structs.replace(before, **given)
        if after == before:
            return Done(message=f"key {before.name} is so already: {rules_words(before)}")
        try:
            await self._store.api_keys.change(after)
        except StoreError as error:
            raise AdminError(503, "store", f"nothing was changed, since it cannot be stored: {error}") from None
        self._tell()
        self._record(after, "key limited", f"by {by}: {rules_words(after)}")
        return Done(message=f"key {after.name} is changed: {rules_words(after)}")

    async def revoke(self, name: str, *, by: str) -> Done:
        """End a key at once: the routers are told before the disk is."""
        key = self._named(name)
        self._store.api_keys.revoke(key.id, self._now())
        self._tell()
        self._record(key, "key revoked", f"by {by}")
        try:
            await self._store.flush(COMMIT_WAIT_S)
        except StoreError as error:
            raise AdminError(
                503, "store", f"the key {key.name} is refused from now on, but this is not stored yet: {error}"
            ) from None
        last = (
            ""
            if self._store.api_keys.all() or not self._hub.keys.required
            else ("; it was the last one, and requests without a key stay refused")
        )
        return Done(message=f"key {key.name} ({key_prefix(key.id)}) is revoked{last}")

    async def run(self) -> None:
        """Keep which keys are used, for ever."""
        while True:
            await asyncio.sleep(NOTE_USED_S)
            self.note_used()

    def note_used(self) -> None:
        """Keep which keys were used since the last time."""
        now = self._now()
        for key_id in self._hub.keys.take_used():
            self._store.api_keys.touch(key_id, now)

    # Inside.

    def _tell(self) -> None:
        self._hub.keys.take(self._store.api_keys.all(), any_made=self._store.api_keys.any_made)
        self._hub.keys_changed()

    def _record(self, key: KeyRecord, event: str, reason: str) -> None:
        self._store.record("operator", key.name, event, self._now(), reason=f"{reason} ({key_prefix(key.id)})")

    def _now(self) -> float:
        return self._hub.clock.wall()

    def _named(self, name: str) -> KeyRecord:
        """By name, or by what the key begins with, which is what leaks show."""
        keys = self._store.api_keys
        found = keys.named(name) or next((key for key in keys.all() if key_prefix(key.id) == name), None)
        if found is None:
            names = [key.name for key in keys.all()]
            raise AdminError(404, "unknown-key", f"there is no key {name!r}; {_known(name, names, 'keys')}")
        return found

    def _known_models(self, names: Sequence[str] | None) -> list[str] | None:
        """The models' own names. A key for a model that does not exist is more likely a slip than a plan."""
        if names is None:
            return None
        models = self._hub.catalog.models
        own = {served: model.name for model in models for served in reversed(model.served_names)}
        own.update({model.name: model.name for model in models})
        for name in names:
            if name not in own:
                known = _known(name, [model.name for model in models], "models")
                raise AdminError(404, "unknown-model", f"there is no model {name!r}; {known}")
        return sorted({own[name] for name in names})

    def _check_expiry(self, expires_at: float | None) -> None:
        if expires_at is not None and expires_at <= self._now():
            raise AdminError(
                400, "bad-request", "expires_at lies in the past; llmgw ctl keys revoke ends a key now"
            )


def rules_words(key: KeyRecord) -> str:
    """What a key may do, for people: `all models, 60 requests a minute`."""
    parts = ["all models" if key.models is None else f"models {', '.join(key.models)}"]
    for value, words in (
        (key.requests_per_minute, "requests a minute"),
        (key.tokens_per_minute, "tokens a minute"),
        (key.concurrency, "at a time"),
    ):
        if value is not None:
            parts.append(f"{value} {words}")
    if key.priority:
        parts.append(f"priority {key.priority}")
    if key.expires_at is not None:
        parts.append(f"until {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(key.expires_at))}")
    return ", ".join(parts)


def _view(key: KeyRecord, now: float) -> KeyView:
    return KeyView(
        name=key.name,
        id=key.id,
        prefix=key_prefix(key.id),
        models=key.models,
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        concurrency=key.concurrency,
        priority=key.priority,
        created_at=key.created_at,
        created_by=key.created_by,
        expires_at=key.expires_at,
        expired=key.expires_at is not None and key.expires_at <= now,
        last_used_at=key.last_used_at,
    )


def _exists(name: str) -> AdminError:
    return AdminError(
        409, "exists", f"there is a key named {name} already; choose another name, or revoke that one first"
    )


def _known(name: str, names: list[str], what: str) -> str:
    if not names:
        return f"there are no {what}"
    close = get_close_matches(name, names, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    shown = ", ".join(sorted(names)[:NAMES_SHOWN_MAX])
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"{meant}the {what} are {shown}{more}"
