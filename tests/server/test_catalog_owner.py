"""The catalog's owner over a real store and hub, asked through the admin API as `ctl` asks it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.config.catalog import Catalog
from llmgw.fleet.model import Fleet, ReplicaState
from llmgw.fleet.settings import FleetSettings
from llmgw.server.admin.app import create_admin_app
from llmgw.server.backend import Backend
from llmgw.server.catalogs import ruling_catalog
from llmgw.server.hub import Clock, Hub
from llmgw.server.ids import RandomIds
from llmgw.server.memory import StoreMemory
from llmgw.server.store.secrets import hash_secret
from llmgw.server.store.store import Store
from llmgw.server.upgrades.releases import Releases
from llmgw.server.upgrades.upgrades import Upgrades
from tests.fleet.world import Machine, World

NOW = 1_900_000_000.0
TOKEN = "t" * 43


def model(name: str = "a", replicas: int = 5, **profile: Any) -> dict[str, Any]:
    return {"name": name, "profiles": [{"engine": "sim", "replicas": replicas, **profile}]}


class Plane:
    """A hub whose fleet has five ready replicas of `a`, its store, and a client of its admin API."""

    def __init__(self, store: Store, hub: Hub, backend: Backend, client: httpx.AsyncClient) -> None:
        self.store, self.hub, self.backend, self._client = store, hub, backend, client

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self._client.post(f"/api/v1/{path}", json=body)

    async def raw(self, path: str, content: bytes, kind: str) -> httpx.Response:
        return await self._client.post(f"/api/v1/{path}", content=content, headers={"content-type": kind})

    async def put(self, path: str, content: bytes) -> httpx.Response:
        return await self._client.put(f"/api/v1/{path}", content=content)

    async def delete(self, path: str) -> httpx.Response:
        return await self._client.delete(f"/api/v1/{path}")

    async def get(self, path: str) -> Any:
        return (await self._client.get(f"/api/v1/{path}")).json()

    async def apply(self, *models: dict[str, Any], **more: Any) -> httpx.Response:
        return await self.post("catalog", **{"models": models, "base": self.backend.catalog.revision, **more})

    async def refused(self, answer: httpx.Response, status: int, code: str) -> str:
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        return str(answer.json()["message"])


@asynccontextmanager
async def plane(state: Path, config: Path | None = None) -> AsyncIterator[Plane]:
    store = await Store.open(state, NOW)
    seed = Catalog.model_validate({"models": [model()]})
    revision, catalog, _ = await ruling_catalog(store, seed, NOW)
    hub = Hub(
        epoch=store.epoch,
        catalog=catalog,
        settings=FleetSettings(),
        clock=Clock(monotonic=lambda: 1010.0, wall=lambda: NOW),
        ids=RandomIds(),
        memory=StoreMemory(store),
        publish=lambda table: None,
    )
    hub.fleet = ready_fleet(seed)
    await store.create_token("ops", hash_secret(TOKEN), NOW)
    backend = Backend(
        hub,
        store,
        listen="",
        config_path=config,
        revision=revision,
        started_at=NOW,
        routers=list,
        problems=list,
        certificates=list,
        upgrades=Upgrades(hub, store, Releases(state), release_key=state / "release.pub"),
    )
    transport = httpx.ASGITransport(create_admin_app(backend, secure=True), client=("127.0.0.1", 1))
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as client:
        yield Plane(store, hub, backend, client)
    await store.close()


def ready_fleet(catalog: Catalog) -> Fleet:
    world = World(catalog, [Machine("n1", []), Machine("n2", [])])
    world.run(10.0)
    assert [replica.state for replica in world.fleet.replicas.values()] == [ReplicaState.READY] * 5
    return world.fleet


Test = Callable[[Plane], Coroutine[Any, Any, None]]


def test_an_apply_is_a_numbered_revision_with_who_when_and_why(with_plane: Callable[[Test], None]) -> None:
    async def body(plane: Plane) -> None:
        done = (await plane.apply(model(), model("b", 1), note="a second model")).json()
        assert (done["message"], done["revision"]) == ("catalog revision 2 rules", 2)
        assert done["plan"]["models"][0]["change"] == "added"
        assert [entry.name for entry in plane.hub.catalog.models] == ["a", "b"]
        newest, first = await plane.get("catalog/revisions")
        assert (newest["revision"], newest["by"], newest["note"], newest["ruling"], newest["at"]) == (
            2, "ops", "a second model", True, NOW,
        )  # fmt: skip
        assert (first["revision"], first["by"], first["ruling"]) == (1, "server.yaml", False)
        (event,) = await plane.get("history?kind=catalog")
        assert (event["subject"], event["event"], event["reason"]) == (
            "revision 2", "applied", "a second model, by ops",
        )  # fmt: skip

    with_plane(body)


def test_a_plan_changes_nothing(with_plane: Callable[[Test], None]) -> None:
    async def body(plane: Plane) -> None:
        before = repr(plane.hub.fleet)
        planned = (await plane.post("catalog/plan", models=[model(replicas=3, args=["--x"])])).json()
        assert (planned["base"], planned["stops"], planned["rolls"], planned["ready"]) == (1, 2, 3, 5)
        assert "2 of 5 ready replicas" in planned["confirm"]
        assert repr(plane.hub.fleet) == before
        assert len(await plane.get("catalog/revisions")) == 1

    with_plane(body)


def test_a_catalog_that_does_not_validate_changes_nothing_and_names_the_key(
    with_plane: Callable[[Test], None],
) -> None:
    async def body(plane: Plane) -> None:
        for path in ("catalog", "catalog/plan"):
            more = {"base": 1} if path == "catalog" else {}
            twice = await plane.refused(
                await plane.post(path, models=[model(), model()], **more), 400, "bad_catalog"
            )
            assert "models[1].name: the name 'a' belongs to both" in twice
            below = await plane.refused(
                await plane.post(path, models=[model(replicas=-1)], **more), 400, "bad_catalog"
            )
            assert "models[0].profiles[0].replicas: must be at least 0, got -1" in below
        assert len(await plane.get("catalog/revisions")) == 1

    with_plane(body)


def test_a_plan_against_a_revision_that_rules_no_more_is_refused(with_plane: Callable[[Test], None]) -> None:
    async def body(plane: Plane) -> None:
        await plane.apply(model(), model("b", 1), note="night shift")
        stale = await plane.refused(await plane.apply(model(), base=1), 409, "stale_plan")
        assert "made against revision 1, and meanwhile ops made revision 2 (night shift)" in stale
        await plane.refused(await plane.apply(model(), base=9), 409, "stale_plan")
        assert plane.backend.catalog.revision == 2

    with_plane(body)


def test_of_two_applies_of_one_plan_at_once_one_is_taken(with_plane: Callable[[Test], None]) -> None:
    async def body(plane: Plane) -> None:
        answers = await asyncio.gather(*(plane.apply(model(), model(f"b{n}", 1), base=1) for n in range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
        assert len(await plane.get("catalog/revisions")) == 2

    with_plane(body)


def test_scales_at_once_are_all_kept(with_plane: Callable[[Test], None]) -> None:
    async def body(plane: Plane) -> None:
        await plane.apply(model(), model("b", 1))
        await asyncio.gather(
            plane.post("scale", model="a", replicas=7), plane.post("scale", model="b", replicas=2)
        )
        wanted = {entry.name: entry.profiles[0].replicas for entry in plane.hub.catalog.models}
        assert wanted == {"a": 7, "b": 2}
        assert plane.backend.catalog.revision == 4

    with_plane(body)


def test_what_stops_too_much_needs_a_yes_however_it_is_asked_for(with_plane: Callable[[Test], None]) -> None:
    async def body(plane: Plane) -> None:
        for answer in (
            await plane.apply(model(replicas=3)),
            await plane.apply(),
            await plane.post("scale", model="a", replicas=0),
        ):
            assert "ready replicas" in await plane.refused(answer, 409, "needs_confirmation")
        assert plane.backend.catalog.revision == 1
        assert (await plane.apply(model(replicas=4))).status_code == 200
        assert (await plane.post("scale", model="a", replicas=1, confirmed=True)).status_code == 200
        assert (await plane.apply(confirmed=True)).status_code == 200
        assert plane.hub.catalog.models == []

    with_plane(body)


def test_a_rollback_is_a_new_revision_with_the_old_content(with_plane: Callable[[Test], None]) -> None:
    async def body(plane: Plane) -> None:
        seed = plane.hub.catalog
        await plane.apply(model(args=["--x"]))
        planned = (await plane.post("catalog/plan", revision=1)).json()
        assert planned["models"][0]["profiles"][0]["rolled_by"] == ["args"]
        done = (await plane.post("catalog", revision=1, base=2)).json()
        assert done["revision"] == 3
        assert plane.hub.catalog == seed
        assert (await plane.get("catalog/revisions"))[0]["note"] == "rollback to revision 1"
        again = (await plane.post("catalog", revision=1, base=3)).json()
        assert again["message"] == "revision 3 holds exactly this already; nothing was changed"

    with_plane(body)


def test_what_does_not_exist_is_refused_with_the_code_that_the_documents_name(
    with_plane: Callable[[Test], None],
) -> None:
    async def body(plane: Plane) -> None:
        assert (await plane.get("explain?model=nope"))["code"] == "unknown-model"
        assert (await plane.get("replicas?model=nope"))["code"] == "unknown-model"
        assert (await plane.get("nodes/nope"))["code"] == "unknown-node"
        assert (await plane.get("replicas/nope"))["code"] == "unknown-replica"
        await plane.refused(await plane.post("scale", model="nope", replicas=1), 404, "unknown-model")

    with_plane(body)


def test_a_revision_that_never_was_comes_with_the_range_that_exists(with_plane: Callable[[Test], None]) -> None:
    async def body(plane: Plane) -> None:
        first = await plane.refused(await plane.post("catalog/plan", revision=7), 404, "unknown_revision")
        assert first == "the catalog never had a revision 7; there is only revision 1"
        await plane.apply(model(), model("b", 1))
        later = await plane.refused(await plane.post("catalog", revision=7, base=2), 404, "unknown_revision")
        assert later == "the catalog never had a revision 7; there are 1 to 2"
        assert (await plane.get("catalog?revision=7"))["message"] == later

    with_plane(body)


def test_what_is_shown_is_taken_back_unchanged(with_plane: Callable[[Test], None]) -> None:
    async def body(plane: Plane) -> None:
        await plane.apply(model(load_timeout="1234567s", env={"A": "yes"}, stop_timeout="2m"))
        shown = await plane.get("catalog")
        assert (shown["revision"], shown["ruling"]) == (2, True)
        assert (await plane.post("catalog/plan", models=shown["models"])).json()["unchanged"]
        assert (await plane.get("catalog?revision=1"))["ruling"] is False

    with_plane(body)


def test_the_newest_revision_rules_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with plane(tmp_path) as first:
            await first.apply(model(load_timeout="1234567s"))
        async with asyncio.timeout(10):
            store = await Store.open(tmp_path, NOW)
            number, catalog, differs = await ruling_catalog(store, Catalog(), NOW)
            await store.close()
        assert (number, catalog.models[0].profiles[0].load_timeout) == (2, 1234567.0)
        assert "differ from catalog revision 2, which rules" in (differs or "")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("make", "part"), [(None, "No such file"), ("pipe", "it is not a file"), ("empty", "does not hold")]
)
def test_a_key_file_that_cannot_be_read_holds_nothing_up_and_changes_nothing(
    tmp_path: Path, make: str | None, part: str
) -> None:
    key = tmp_path / "key"
    if make == "pipe":
        os.mkfifo(key)
    elif make == "empty":
        key.write_text("")

    async def main() -> None:
        async with asyncio.timeout(20), plane(tmp_path / "state", tmp_path / "server.yaml") as here:
            static = {"name": "s", "endpoints": [{"url": "http://x", "api_key_file": "key"}]}
            for path, more in (("catalog/plan", {}), ("catalog", {"base": 1})):
                answer = await here.post(path, models=[model(), static], **more)
                assert part in await here.refused(answer, 400, "bad_catalog")
            assert here.backend.catalog.revision == 1

    asyncio.run(main())
