"""Engines' own figures go from heartbeats to the routers: fresh ones, of routed replicas."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.observe import report
from llmgw.messages.agent import EngineFigures
from llmgw.messages.routes import FIGURES_STALE_S, EndpointFigure, EndpointFigures
from llmgw.metrics.engines import engine_text
from llmgw.server import figures as module
from llmgw.server.figures import endpoint_figures, figures_by_model, send_figures
from llmgw.server.hub import Hub
from tests.fleet.world import Machine, World
from tests.server.exposition import families


@pytest.fixture
def world() -> World:
    profile = Profile(engine="sim", gpus_per_node=1, replicas=2)
    world = World(Catalog(models=[CatalogModel(name="m", profiles=[profile])]), [Machine("node01", ["ib-a"])])
    world.run(20)
    return world


def tell(world: World, *figures: EngineFigures | None) -> None:
    """A heartbeat of the node: what each of its replicas' engines says, in the order of their ids."""
    machine = world.machines["node01"]
    held = [
        msgspec.structs.replace(machine.held[shard_id], figures=each)
        for shard_id, each in zip(sorted(machine.held), figures, strict=True)
    ]
    report(world.fleet, "node01", None, held, world.now)


def known(world: World, now: float) -> list[EndpointFigure]:
    found = endpoint_figures(world.fleet, now).figures
    return [found[name] for name in sorted(found)]


def test_figures_reach_routers_with_their_age_and_not_when_they_are_stale(world: World) -> None:
    rates = {"prefix_hits": 0.5, "prompt_tokens_per_s": 70.0, "tokens_per_s": 9.0, "preemptions_per_s": 0.1}
    tell(world, EngineFigures(running=4, waiting=2, cache_used=0.5, age_s=3.0, **rates), None)
    at = world.now
    assert known(world, at + 1) == [EndpointFigure(running=4, waiting=2, cache_used=0.5, age_s=4.0, **rates)]
    assert known(world, at + FIGURES_STALE_S - 3.0) == []
    tell(world, None, None)
    assert known(world, at) == [], "an engine that says nothing any more"


def test_a_replica_that_is_out_of_the_rotation_has_none(world: World) -> None:
    tell(world, EngineFigures(waiting=2), EngineFigures(waiting=0))
    first, _ = sorted(world.fleet.replicas)
    world.fleet.replicas[first].suspended = "no progress"
    assert len(known(world, world.now)) == 1


def test_metrics_add_up_what_a_models_engines_say(world: World) -> None:
    one = EngineFigures(
        running=4, waiting=2, cache_used=0.5, prefix_hits=0.5, prompt_tokens_per_s=300.0, tokens_per_s=40.0
    )
    other = EngineFigures(
        running=1, cache_used=0.25, prefix_hits=0.1, prompt_tokens_per_s=100.0, tokens_per_s=2.5
    )
    tell(world, one, other)
    text = engine_text({"m": figures_by_model(world.fleet, world.now)["m"], "other": []})
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families(text).values()
        for sample in family.samples
    }
    assert samples == {
        ("llmgw_engine_requests", "m", "running"): 5,
        ("llmgw_engine_requests", "m", "waiting"): 2,
        ("llmgw_engine_cache_used_ratio", "m"): 0.5,
        ("llmgw_engine_prefix_hit_ratio", "m"): 0.4,
        ("llmgw_engine_prompt_tokens_per_second", "m"): 400,
        ("llmgw_engine_tokens_per_second", "m"): 42.5,
    }


def test_only_what_is_new_is_sent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_EVERY_S", 0.001)
    turns = 0
    over = asyncio.Event()
    sent: list[EndpointFigures] = []

    def monotonic() -> float:
        nonlocal turns
        turns += 1
        if turns in (3, 9):
            tell(world, EngineFigures(waiting=turns), None)
        if turns == 30:
            over.set()
        world.now += 0.5
        return world.now

    hub: Any = SimpleNamespace(fleet=world.fleet, clock=SimpleNamespace(monotonic=monotonic))

    async def run() -> None:
        task = asyncio.create_task(send_figures(cast(Hub, hub), sent.append))
        async with asyncio.timeout(10):
            await over.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert [[each.waiting for each in message.figures.values()] for message in sent] == [[3], [9]]
