"""The plan of a catalog: what it says would happen is what the core then does."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.config.catalog import Catalog
from llmgw.fleet.choice_words import OF_SEVERAL, nodes_that
from llmgw.fleet.filters import FILTERS
from llmgw.fleet.foresight import copied
from llmgw.fleet.model import ReplicaState
from llmgw.fleet.plan import plan_catalog, ready_stops
from llmgw.messages.admin import CatalogPlan, ProfilePlan
from tests.fleet.world import Machine, World


def model(name: str = "a", **changes: Any) -> dict[str, Any]:
    top = {
        key: changes.pop(key) for key in ("aliases", "task", "first_byte_timeout", "endpoints") if key in changes
    }
    return {"name": name, **top, "profiles": [{"engine": "sim", **changes}]}


def catalog(*models: dict[str, Any]) -> Catalog:
    return Catalog.model_validate({"models": list(models)})


def world(*models: dict[str, Any], nodes: int = 2, gpus: int = 4) -> World:
    made = World(catalog(*models), [Machine(f"n{i}", [["ib-a", "ib-b"][i % 2]], gpus) for i in range(nodes)])
    made.run(10.0)
    return made


def plan(of: World, *models: dict[str, Any]) -> CatalogPlan:
    return plan_catalog(of.fleet, of.catalog, catalog(*models), base=1, now=of.now, settings=of.settings)


def only(planned: CatalogPlan) -> ProfilePlan:
    ((profile,),) = [entry.profiles for entry in planned.models]
    return profile


def counts(planned: CatalogPlan | ProfilePlan) -> tuple[int, int, int]:
    return planned.starts, planned.stops, planned.rolls


def test_the_ruling_catalog_changes_nothing() -> None:
    here = world(model(replicas=2))
    planned = plan(here, model(replicas=2))
    assert planned == CatalogPlan(base=1, unchanged=True, models_unchanged=1, ready=2)


def test_a_plan_leaves_the_fleet_as_it_is() -> None:
    here = world(model(replicas=2), model("b", nodes=2, gpus_per_node=1), nodes=4)
    before = repr(here.fleet)
    plan(here, model("c", replicas=3), model(replicas=2, args=["--new"]))
    assert repr(here.fleet) == before


def test_a_copy_shares_nothing_that_changes() -> None:
    here = world(model(replicas=2))
    twin = copied(here.fleet)
    for replica in twin.replicas.values():
        replica.state = ReplicaState.FAILED
        replica.seats.clear()
        for shard in replica.shards.values():
            shard.phase = "failed"
            shard.output_tail.append("x")
    for node in twin.nodes.values():
        node.cordoned = True
        node.disowned["x"] = next(iter(here.fleet.replicas.values())).shards[0].spec
    assert all(replica.state is ReplicaState.READY and replica.seats for replica in here.fleet.replicas.values())
    assert not any(node.cordoned or node.disowned for node in here.fleet.nodes.values())


def test_added_removed_scaled_and_rolled_are_told_apart_and_counted() -> None:
    here = world(model("rolled", replicas=2), model("scaled", replicas=1), model("gone", replicas=1))
    planned = plan(here, model("rolled", replicas=2, args=["--x"]), model("scaled", replicas=3), model("new"))
    told = {entry.name: (entry.change, *counts(entry.profiles[0])) for entry in planned.models}
    assert told == {
        "rolled": ("changed", 0, 0, 2),
        "scaled": ("changed", 2, 0, 0),
        "new": ("added", 1, 0, 0),
        "gone": ("removed", 0, 1, 0),
    }
    assert counts(planned) == (3, 1, 2)
    assert (planned.ready, planned.ready_stopped) == (4, 1)
    by_name = {entry.name: entry.profiles[0] for entry in planned.models}
    assert (by_name["scaled"].replicas_before, by_name["scaled"].replicas_after) == (1, 3)
    assert by_name["rolled"].rolled_by == ["args"]


def test_what_the_plan_counts_is_what_the_core_then_does() -> None:
    here = world(model("rolled", replicas=2), model("scaled", replicas=1), model("gone", replicas=1))
    after = catalog(model("rolled", replicas=2, args=["--x"]), model("scaled", replicas=3), model("new"))
    planned = plan_catalog(here.fleet, here.catalog, after, base=1, now=here.now, settings=here.settings)
    before = set(here.fleet.replicas)
    here.catalog = after
    here.run(60.0)
    new = set(here.fleet.replicas) - before
    assert len(new) == planned.starts + planned.rolls
    assert len(before - set(here.fleet.replicas)) == planned.stops + planned.rolls


@pytest.mark.parametrize(
    ("changed", "rolled_by", "keys"),
    [
        ({"args": ["--x"]}, ["args"], []),
        ({"env": {"A": "b"}, "load_timeout": "1m"}, ["env"], ["load_timeout"]),
        ({"stop_timeout": "1s", "stop_first": True}, [], ["stop_timeout", "stop_first"]),
        ({"aliases": ["other"]}, ["aliases"], []),
        ({"gpus_per_node": 2}, ["gpus_per_node"], []),
        ({"tensor_parallel": 1}, [], ["tensor_parallel"]),
        ({"first_byte_timeout": "5m"}, [], []),
        ({"concurrency": 8}, [], ["concurrency"]),
    ],
)
def test_it_names_the_keys_that_roll_and_those_that_do_not(
    changed: dict[str, Any], rolled_by: list[str], keys: list[str]
) -> None:
    planned = plan(world(model()), model(**changed))
    assert planned.models[0].change == "changed"
    if not rolled_by and not keys:
        assert planned.models[0].keys == ["first_byte_timeout"]
        assert planned.models[0].profiles == []
        return
    profile = only(planned)
    assert (profile.rolled_by, profile.keys, profile.rolls) == (rolled_by, keys, 1 if rolled_by else 0)


def test_static_endpoints_come_go_and_change() -> None:
    here = World(catalog(), [])
    here.catalog = catalog(model(endpoints=[{"url": "http://a"}, {"url": "http://b"}]))
    planned = plan(here, model(endpoints=[{"url": "http://b", "model": "m"}, {"url": "http://c"}]))
    (entry,) = planned.models
    assert (entry.endpoints_added, entry.endpoints_removed, entry.endpoints_changed) == (
        ["http://c"],
        ["http://a"],
        ["http://b"],
    )


def test_what_finds_no_room_is_told_with_placement_s_own_reason() -> None:
    planned = plan(world(model(replicas=2, gpus_per_node=2)), model(replicas=5, gpus_per_node=2))
    profile = only(planned)
    assert (profile.starts, profile.unplaced) == (2, 1)
    assert profile.reason == "needs 1 node with 2 free GPUs; 2 nodes have too few free GPUs"
    assert planned.warnings == [f"a/default: 1 replica finds no place now: {profile.reason}"]
    assert profile.never is None


def test_what_waits_for_others_to_stop_is_later_and_not_unplaced() -> None:
    here = world(model("old", replicas=2, gpus_per_node=4))
    profiles = {entry.name: entry.profiles[0] for entry in plan(here, model("new", gpus_per_node=4)).models}
    assert counts(profiles["new"]) == (1, 0, 0)
    assert (profiles["new"].later, profiles["new"].unplaced) == (1, 0)
    assert profiles["new"].reason == "there is room when others have stopped"


def test_a_roll_without_room_says_so_and_with_stop_first_it_goes() -> None:
    here = world(model(replicas=2, gpus_per_node=4))
    blocked = only(plan(here, model(replicas=2, gpus_per_node=4, args=["--x"])))
    assert (blocked.rolls, blocked.unplaced) == (2, 2)
    assert "too few free GPUs" in (blocked.reason or "")
    freed = only(plan(here, model(replicas=2, gpus_per_node=4, args=["--x"], stop_first=True)))
    assert (freed.rolls, freed.starts, freed.stops, freed.unplaced) == (2, 0, 0, 0)


@pytest.mark.parametrize("reason", [each.reason for each in FILTERS])
def test_every_refusal_can_be_said_of_one_node_and_of_several(reason: str) -> None:
    verb, rest = reason.split(" ", 1)
    assert nodes_that(1, reason) == f"1 node {reason}"
    assert nodes_that(2, reason) == f"2 nodes {OF_SEVERAL[verb]} {rest}"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"gpus_per_node": 16}, "2 nodes have fewer usable GPUs than gpus_per_node"),
        ({"nodes": 2, "gpus_per_node": 1}, "there is only 1 on ib-a, 1 on ib-b"),
        ({"fabric": "ib-z"}, "2 nodes are not on the fabric that the profile names"),
        ({"gpus_per_node": 16, "replicas": 0}, "fewer usable GPUs"),
    ],
)
def test_what_no_node_could_ever_host_is_accepted_with_a_warning_that_says_why(
    changes: dict[str, Any], part: str
) -> None:
    here = world(model("busy", replicas=2, gpus_per_node=4))
    planned = plan(here, model("busy", replicas=2, gpus_per_node=4), model("never", **changes))
    profile = only(planned)
    assert part in (profile.never or "")
    assert planned.warnings[0].startswith("never/default: no node known today could ever host it: needs ")
    assert planned.confirm is None


def test_a_full_or_lost_node_could_host_it_one_day() -> None:
    here = world(model("busy", replicas=2, gpus_per_node=4))
    here.kill("n0")
    here.run(30.0)
    planned = plan(here, model("busy", replicas=2, gpus_per_node=4), model("new", gpus_per_node=4))
    assert [entry.profiles[0].never for entry in planned.models] == [None, None]


@pytest.mark.parametrize(("left", "asks"), [(5, False), (4, False), (3, True), (0, True)])
def test_more_than_a_fifth_of_the_ready_replicas_is_asked_for(left: int, asks: bool) -> None:
    here = world(model(replicas=5))
    stops = ready_stops(here.fleet, here.catalog, catalog(model(replicas=left)))
    assert (stops.ready, stops.stopped) == (5, 5 - left)
    assert (stops.confirm is not None) is asks
    if asks:
        assert stops.confirm == f"it would stop {5 - left} of 5 ready replicas, more than 20%"


def test_an_empty_catalog_is_always_asked_for() -> None:
    here = World(catalog(model(replicas=0)), [])
    here.fleet.settling_until = None
    stops = ready_stops(here.fleet, here.catalog, catalog())
    assert "the catalog would be empty: everything is stopped" in (stops.confirm or "")


def test_a_settling_server_asks_before_it_wants_less_since_it_does_not_know_what_runs() -> None:
    here = world(model(replicas=3))
    here.start_server()
    fewer = ready_stops(here.fleet, here.catalog, catalog(model(replicas=2)))
    assert "has just started" in (fewer.confirm or "")
    assert ready_stops(here.fleet, here.catalog, catalog(model(replicas=4))).confirm is None
    planned = plan(here, model(replicas=4))
    assert counts(planned) == (0, 0, 0)
    assert "waits for its nodes" in planned.warnings[0]


def test_an_ongoing_roll_counts_once() -> None:
    here = world(model(replicas=2))
    here.catalog = catalog(model(replicas=2, args=["--x"]))
    here.turn()  # the first replacement was started and is not ready
    planned = plan(here, model(replicas=2, args=["--x"]))
    assert planned.unchanged
    assert (planned.starts, planned.stops) == (0, 0)
    assert planned.confirm is None


def test_a_profile_that_is_held_back_by_failures_is_planned_as_if_it_were_not() -> None:
    here = world(model(replicas=1))
    replica = next(iter(here.fleet.replicas.values()))
    machine = here.machines[replica.node_ids[0]]
    here.crash_engine(machine, replica.shards[0].shard_id)
    here.run(2.0)
    assert only(plan(here, model(replicas=2))).unplaced == 0


def test_a_profile_that_is_mended_is_tried_at_once_and_not_held_back_by_its_old_form_s_failures() -> None:
    here = world(model(replicas=1))
    for _ in range(3):  # it crashes whenever it has come up, so that it is held back for longer and longer
        for machine in here.machines.values():
            for shard_id in list(machine.held):
                here.crash_engine(machine, shard_id)
        here.run(12.0)
    for machine in here.machines.values():
        for shard_id in list(machine.held):
            here.crash_engine(machine, shard_id)
    here.run(2.0)
    assert here.replicas("a") == []
    here.run(2.0)
    assert here.replicas("a") == [], "it is held back"
    here.catalog = catalog(model(replicas=1, args=["--mended"]))
    here.run(3.0)
    assert len(here.serving("a")) == 1
