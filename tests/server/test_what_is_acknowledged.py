"""An agent forgets what the server acknowledges: the end of a shard is acknowledged when history holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llmgw.config.catalog import Catalog
from llmgw.fleet.observe import Enrolment
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import HeldShard, Inventory, Register, Report, ShardPhase, ShardSpec
from llmgw.server import hub as hub_module
from llmgw.server.hub import Hub
from llmgw.server.ids import RandomIds
from llmgw.server.memory import StoreMemory, known_lives, known_nodes
from llmgw.server.seams import Clock
from llmgw.server.store.store import DATABASE_NAME, Store

NOW = 1_900_000_000.0


class Life:
    """One life of a server: a hub over a real store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.hub = Hub(
            epoch=store.epoch,
            catalog=Catalog(models=[]),
            settings=FleetSettings(),
            clock=Clock(monotonic=lambda: 1000.0, wall=lambda: NOW),
            ids=RandomIds(),
            memory=StoreMemory(store),
            publish=lambda table: None,
            known_nodes=known_nodes(store, 1000.0),
            known_lives=known_lives(store),
        )
        self._counter = 0

    def register(self, *held: HeldShard) -> str:
        self._counter += 1
        message = Register(
            node_id="n1",
            boot_id="b",
            instance=self.store.epoch,
            instance_started_at=float(self.store.epoch.split("-")[0]),
            counter=self._counter,
            version="1",
            inventory=Inventory(),
            held=list(held),
        )
        return self.hub.register(message, Enrolment("10.0.0.1"), "1").session

    async def report(self, session: str, *shards: HeldShard) -> list[str]:
        return (await self.hub.report(Report(session=session, shards=list(shards)))).forget

    async def endings(self) -> list[str]:
        entries = await self.store.history(subject="a-1")
        return [f"{entry.event}: {entry.reason}" for entry in entries if entry.event.startswith("shard ")]


def shard(phase: ShardPhase, version: int = 3, reason: str | None = None) -> HeldShard:
    spec = ShardSpec(
        shard_id="a-1.0",
        replica_id="a-1",
        model="a",
        profile="p",
        profile_hash="",
        served_names=["a"],
        engine="sim",
    )
    return HeldShard(spec=spec, phase=phase, version=version, reason=reason)


ENDED = shard("failed", 4, "exited with status 3")
TOLD = ["shard failed: rank 0 on n1: exited with status 3"]


def test_an_end_is_acknowledged_only_when_a_reader_of_the_disk_finds_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with life(tmp_path) as server:
            session = server.register(shard("ready"))
            assert await server.report(session, ENDED) == ["a-1.0"]
            # Not by a flush of ours: what is read is what is committed.
            assert await server.endings() == TOLD

    run(body)


def test_while_the_store_takes_nothing_the_fleet_goes_on_and_no_end_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "STORED_WAIT_S", 0.3)

    async def body() -> None:
        async with life(tmp_path) as server:
            session = server.register(shard("ready"))
            await server.store.flush()
            put_away(tmp_path)
            assert await server.report(session, ENDED) == []
            # It counts all the same, and what is wrong is said.
            assert server.hub.fleet.shards_on("n1") == []
            assert [finding.check for finding in server.store.findings()] == ["store-write-failing"]
            # The next heartbeats repeat it; they neither wait for a store that fails, nor fill its queue.
            waiting = server.store._writer.waiting
            monkeypatch.setattr(hub_module, "STORED_WAIT_S", 60.0)
            for _ in range(3):
                assert await server.report(session, ENDED) == []
            assert server.store._writer.waiting == waiting
            put_back(tmp_path)
            await server.store.flush()
            assert await server.report(session, ENDED) == ["a-1.0"]
            assert await server.endings() == TOLD

    run(body)


def test_an_end_that_an_earlier_server_did_not_acknowledge_is_in_history_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with life(tmp_path) as first:
            first.register(shard("ready"))
        # It ended while there was no server, and is told to the next ones: each may have died before it answered.
        for registered_with in ([ENDED], [ENDED], []):
            async with life(tmp_path) as server:
                session = server.register(*registered_with)
                for _ in range(2):
                    assert await server.report(session, ENDED) == ["a-1.0"]
                assert await server.endings() == TOLD

    run(body)


def test_an_answer_about_a_shard_that_nobody_holds_is_no_history(tmp_path: Path) -> None:
    nobody = ShardSpec(
        shard_id="a-1.0", replica_id="-", model="-", profile="-", profile_hash="", served_names=[], engine="-"
    )
    answer = HeldShard(spec=nobody, phase="stopped", version=2**31 - 1, reason="this agent does not hold it")

    async def body() -> None:
        async with life(tmp_path) as server:
            session = server.register()
            assert await server.report(session, answer) == ["a-1.0"]
            assert not [entry for entry in await server.store.history() if entry.kind == "replica"]

    run(body)


def put_away(tmp_path: Path) -> None:
    (tmp_path / "state" / DATABASE_NAME).rename(tmp_path / "elsewhere")


def put_back(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").rename(tmp_path / "state" / DATABASE_NAME)


@asynccontextmanager
async def life(tmp_path: Path) -> AsyncIterator[Life]:
    store = await Store.open(tmp_path / "state", NOW)
    yield Life(store)
    await store.close()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(body(), 20.0)

    asyncio.run(main())
