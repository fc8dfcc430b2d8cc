"""The prober asks a few at a time, the urgent first, and forgets nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.health import probes_wanted
from llmgw.fleet.settings import FleetSettings
from llmgw.server import prober
from llmgw.server.hub import Clock, Hub
from llmgw.server.ids import RandomIds
from tests.fleet.world import Machine, World
from tests.server.test_metrics import Forgetful

SETTINGS = FleetSettings(settle_s=2.0)


def world_of(replicas: int) -> World:
    catalog = Catalog(
        models=[
            CatalogModel(name="small", profiles=[Profile(engine="sim", gpus_per_node=1, replicas=replicas)]),
        ]
    )
    world = World(catalog, [Machine(f"node{i}", ["ib-a"]) for i in range(2)], SETTINGS)
    world.run(10)
    assert len(world.serving("small")) == replicas
    return world


def hub_of(world: World) -> Hub:
    hub = Hub(
        epoch="1",
        catalog=world.catalog,
        settings=SETTINGS,
        clock=Clock(monotonic=lambda: world.now, wall=lambda: 0.0),
        ids=RandomIds(),
        memory=Forgetful(),
        publish=lambda table: None,
    )
    hub.fleet = world.fleet
    return hub


def test_replicas_on_a_silent_node_are_asked_before_idle_ones() -> None:
    world = world_of(6)
    for replica in world.fleet.replicas.values():
        replica.witnessed_at = world.now - 100
    world.fleet.nodes["node1"].last_heard = world.now - 10
    wanted = probes_wanted(world.fleet, world.now, SETTINGS)
    assert len(wanted) == 6
    on_silent = ["node1" in replica.node_ids for replica in wanted]
    assert True in on_silent
    assert on_silent == sorted(on_silent, reverse=True)


def test_who_finds_no_room_is_asked_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(6)
    for replica in world.fleet.replicas.values():
        replica.witnessed_at = world.now - 100
    hub = hub_of(world)
    monkeypatch.setattr(prober, "PROBES_MAX", 4)

    async def look_twice() -> None:
        answer = httpx.MockTransport(lambda request: httpx.Response(200, json={}))
        async with httpx.AsyncClient(transport=answer) as client:
            looking = prober.Prober(hub)
            for _ in range(2):
                looking._look(client)
                await asyncio.gather(*looking._running.values())

    asyncio.run(look_twice())
    assert all(replica.witnessed_at == world.now for replica in world.fleet.replicas.values())


def test_probes_and_counters_carry_the_key_of_the_engine_they_ask() -> None:
    world = world_of(1)
    (replica,) = world.fleet.replicas.values()
    replica.witnessed_at = world.now - 100
    replica.busy_since = world.now - 50  # its counters are read, too
    assert replica.leader is not None
    replica.leader.api_key = "a-key-of-some-length"
    hub = hub_of(world)
    asked: dict[str, str | None] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        asked[request.url.path] = request.headers.get("authorization")
        return httpx.Response(200, json={})

    async def look() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            looking = prober.Prober(hub)
            looking._look(client)
            await asyncio.gather(*looking._running.values())

    asyncio.run(look())
    assert asked == dict.fromkeys(["/v1/chat/completions", "/metrics"], "Bearer a-key-of-some-length")
    assert "a-key-of-some-length" not in repr(world.fleet)


def test_an_engine_whose_own_counters_move_works_though_nobody_gets_an_answer() -> None:
    world = world_of(1)
    (replica,) = world.fleet.replicas.values()
    silent_since = world.now - 100
    replica.witnessed_at, replica.busy_since = silent_since, world.now - 50
    hub = hub_of(world)
    generated = 5

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text=f'vllm:generation_tokens_total{{model="m"}} {generated}\n')
        return httpx.Response(503)

    async def look() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            looking = prober.Prober(hub)
            looking._look(client)
            await asyncio.gather(*looking._running.values())

    for _ in range(2):
        asyncio.run(look())
        assert replica.witnessed_at == silent_since, "they stand still"
    generated = 6
    asyncio.run(look())
    assert replica.witnessed_at == world.now


def test_an_engine_whose_answer_never_ends_costs_neither_memory_nor_a_place() -> None:
    world = world_of(1)
    (replica,) = world.fleet.replicas.values()
    replica.witnessed_at, replica.busy_since = world.now - 100, world.now - 50
    hub = hub_of(world)
    hub.settings = replace(SETTINGS, probe_timeout_s=0.3)
    sent = dict.fromkeys(["/v1/chat/completions", "/metrics"], 0)

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path

        async def drip() -> AsyncIterator[bytes]:
            while True:
                sent[path] += 1
                # One sends what it can, the other a byte now and then.
                yield b"x" * 2**20 if path == "/metrics" else b"x"
                await asyncio.sleep(0 if path == "/metrics" else 0.05)

        return httpx.Response(200, content=drip())

    async def look() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            looking = prober.Prober(hub)
            looking._look(client)
            await asyncio.wait_for(asyncio.gather(*looking._running.values()), 10)
            assert not looking._running

    asyncio.run(look())
    assert 0 < sent["/metrics"] < 10
    assert sent["/v1/chat/completions"] > 1
    assert replica.witnessed_at == world.now - 100
