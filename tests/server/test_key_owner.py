"""The keys as an operator changes them: names, models, what is told to routers, and what is kept of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from llmgw.messages.admin_keys import CreateKey, LimitKey
from llmgw.messages.routes import RouteTable
from llmgw.server import key_owner
from llmgw.server.admin.backend import AdminError
from llmgw.server.hub import Hub
from llmgw.server.key_owner import KeyOwner
from llmgw.server.store.store import Store
from tests.server.test_metrics import NOW, World

Scenario = Callable[["Place"], Awaitable[None]]


class Place:
    def __init__(self, hub: Hub, store: Store, owner: KeyOwner, published: list[RouteTable]) -> None:
        self.hub, self.store, self.owner, self.published = hub, store, owner, published


def play(folder: Path, scenario: Scenario) -> None:
    async def main() -> None:
        store = await Store.open(folder, NOW)
        world = World("chat", "embed")
        published: list[RouteTable] = []
        world.hub._tables._publish = published.append
        world.hub.release_routes()
        world.hub.turn()
        try:
            await scenario(Place(world.hub, store, KeyOwner(world.hub, store), published))
        finally:
            await store.close()

    asyncio.run(main())


def test_a_key_is_made_told_and_kept_as_its_hash(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        made = await place.owner.create(CreateKey(name="alice", models=["chat"]), by="ops")
        kind, key_id, secret = made.key.split("-", 2)
        assert (kind, key_id) == ("llmgw", made.id)
        assert len(secret) == 43, "256 bits"
        (told,) = place.published[-1].keys
        assert told.hash == hashlib.sha256(made.key.encode()).digest()
        assert (told.id, told.models) == (made.id, ["chat"])
        assert place.published[-1].keys_required
        other = await place.owner.create(CreateKey(name="bob"), by="ops")
        assert made.key[-43:] != other.key[-43:]

    play(tmp_path, scenario)


async def refused(work: Awaitable[object]) -> AdminError:
    with pytest.raises(AdminError) as error:
        await work
    return error.value


def test_what_cannot_be_meant_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: Place) -> None:
        owner = place.owner
        await owner.create(CreateKey(name="alice"), by="ops")
        tables = len(place.published)
        for work, status, part in (
            (owner.create(CreateKey(name="alice"), by="ops"), 409, "choose another name"),
            (owner.create(CreateKey(name="b", models=["chta"]), by="ops"), 404, "did you mean 'chat'?"),
            (owner.create(CreateKey(name="b", expires_at=NOW - 1), by="ops"), 400, "in the past"),
            (owner.limit("alcie", LimitKey(priority=1), by="ops"), 404, "did you mean 'alice'?"),
            (owner.limit("alice", LimitKey(), by="ops"), 400, "nothing was named"),
            (owner.limit("alice", LimitKey(models=["none"]), by="ops"), 404, "the models are chat, embed"),
            (owner.limit("alice", LimitKey(expires_at=NOW), by="ops"), 400, "in the past"),
            (owner.revoke("bob", by="ops"), 404, "the keys are alice"),
            (owner.revoke("llmgw-0000000000", by="ops"), 404, "the keys are alice"),
        ):
            error = await refused(work)
            assert error.status == status
            assert part in error.message
        monkeypatch.setattr(key_owner, "KEYS_MAX", 1)
        assert (await refused(owner.create(CreateKey(name="b"), by="ops"))).status == 409
        said = await owner.limit("alice", LimitKey(priority=0), by="ops")
        assert "so already" in said.message
        assert len(place.published) == tables
        assert [view.name for view in owner.views()] == ["alice"]

    play(tmp_path, scenario)


def test_two_who_make_the_same_name_at_once_get_one_key(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        tries = [place.owner.create(CreateKey(name="alice"), by="ops") for _ in range(5)]
        ended = await asyncio.gather(*tries, return_exceptions=True)
        refusals = [each for each in ended if isinstance(each, AdminError)]
        assert len(refusals) == 4
        assert {error.status for error in refusals} == {409}
        assert len(place.owner.views()) == 1

    play(tmp_path, scenario)


def test_what_is_not_named_stays_and_null_takes_away(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        owner = place.owner
        made = await owner.create(
            CreateKey(name="alice", models=["chat"], requests_per_minute=5, concurrency=2, expires_at=NOW + 60),
            by="ops",
        )
        await owner.limit("alice", LimitKey(requests_per_minute=9, concurrency=None), by="ops")
        (view,) = owner.views()
        assert (view.models, view.requests_per_minute, view.concurrency) == (["chat"], 9, None)
        assert view.expires_at == NOW + 60
        await owner.limit(f"llmgw-{made.id}", LimitKey(models=None, expires_at=None), by="night")
        (view,) = owner.views()
        assert (view.models, view.expires_at, view.requests_per_minute) == (None, None, 9)
        assert place.published[-1].keys[0].requests_per_minute == 9
        await owner.revoke("alice", by="ops")
        assert place.published[-1].keys == []
        history = await place.store.history(subject="alice")
        assert [(entry.event, entry.reason.split(":")[0].split(" (")[0]) for entry in history] == [
            ("key revoked", "by ops"),
            ("key limited", "by night"),
            ("key limited", "by ops"),
            ("key created", "by ops"),
        ]
        assert made.key[-43:] not in "".join(entry.reason for entry in history)

    play(tmp_path, scenario)
