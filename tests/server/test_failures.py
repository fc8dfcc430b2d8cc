"""How a replica ended is kept of every rank: its first reason and last output, whenever its agent tells them."""

from __future__ import annotations

from typing import Any

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.model import LOST
from llmgw.messages.agent import HeldShard
from llmgw.server.failures import Failures
from tests.fleet.world import Machine, World

GANG = Profile(engine="sim", nodes=3, gpus_per_node=1)


def gang() -> tuple[World, Failures]:
    """A gang of three that serves, and what is kept of failures."""
    nodes = [Machine(f"node0{number}", ["ib-a"]) for number in (1, 2, 3)]
    world = World(Catalog(models=[CatalogModel(name="m", profiles=[GANG])]), nodes)
    world.run(20)
    assert world.serving("m") == ["m-1"]
    return world, Failures()


def held(world: World, rank: int, phase: str, **more: Any) -> HeldShard:
    """Rank `rank` as its agent tells it."""
    shard = world.fleet.replicas["m-1"].shards[rank]
    return HeldShard(spec=shard.spec, phase=phase, version=9, **more)  # type: ignore[arg-type]


def test_every_rank_s_last_output_is_kept_also_of_those_that_were_stopped_for_it() -> None:
    world, failures = gang()
    shards = world.fleet.replicas["m-1"].shards
    shards[0].phase, shards[0].reason, shards[0].output_tail = (
        "failed",
        "engine exited with code 1",
        ["timed out"],
    )
    shards[1].reason = "waits for memory"
    failures.note(world.fleet, "m-1", "rank 0: engine exited with code 1", 5.0)
    failures.remember(world.fleet, [held(world, 1, "failed", reason="out of memory", output_tail=["CUDA error"])])
    failures.remember(world.fleet, [held(world, 2, "stopping", output_tail=["not yet"])])
    failures.remember(
        world.fleet, [held(world, 2, "stopped", reason="its replica failed", output_tail=["stuck"])]
    )
    failures.remember(world.fleet, [held(world, 1, "stopped", reason="again", output_tail=["later"])])
    kept = failures.get("m-1")
    assert kept is not None
    assert [(kept.shards[rank].reason, kept.shards[rank].output_tail) for rank in range(3)] == [
        ("engine exited with code 1", ["timed out"]),
        ("out of memory", ["CUDA error"]),
        ("its replica failed", ["stuck"]),
    ]
    assert kept.shards[2].node == world.fleet.replicas["m-1"].shards[2].node_id


def test_what_ran_on_a_lost_node_tells_its_last_output_when_the_node_is_back() -> None:
    world, failures = gang()
    shards = world.fleet.replicas["m-1"].shards
    shards[1].phase, shards[1].reason = LOST, "node02 is lost"
    failures.note(world.fleet, "m-1", "node02 is lost", 5.0)
    failures.remember(world.fleet, [held(world, 1, "stopped", reason="given up", output_tail=["the last"])])
    kept = failures.get("m-1")
    assert kept is not None
    assert (kept.shards[1].reason, kept.shards[1].output_tail) == ("node02 is lost", ["the last"])
    assert list(kept.shards) == [1]
