"""What needs a person is said where an operator looks: `status`, `nodes`, `models`, and what commands answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from llmgw.fleet.actions import StopRollout
from llmgw.fleet.model import Backoff, NodeState
from llmgw.messages.findings import Finding
from llmgw.server.rollback import roll_back
from tests.server.test_catalog_owner import NOW, Plane, Test, model

WithPlane = Callable[[Test], None]


async def problems(plane: Plane) -> dict[str, Any]:
    return {finding["check"]: finding for finding in (await plane.get("server"))["problems"]}


async def the_model(plane: Plane) -> dict[str, Any]:
    ((profile,),) = (entry["profiles"] for entry in await plane.get("models"))
    return dict(profile)


def keep_nodes(plane: Plane) -> None:
    """Have the store know the nodes: it keeps no flags of others."""
    for node in plane.hub.fleet.nodes.values():
        plane.store.put_node(node.node_id, NOW)


def fill(plane: Plane) -> None:
    """Leave every node without a free GPU."""
    for node in plane.hub.fleet.nodes.values():
        used = plane.hub.fleet.gpus_in_use().get(node.node_id, set())
        kept = [gpu for gpu in node.gpus if gpu.uuid in used]
        node.inventory = msgspec.structs.replace(node.inventory, gpus=kept)


def test_a_healthy_fleet_has_no_problems(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        assert await problems(plane) == {}
        assert (await the_model(plane))["reason"] is None

    with_plane(body)


def test_the_worst_stands_first_whoever_tells_of_it(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        await plane.apply(model(replicas=50))
        plane.hub.turn()
        node = plane.hub.fleet.nodes["n1"]
        worse = Finding(check="fabric-port-down", severity="error", where="n1 mlx5_0", what="is not offered")
        node.inventory = msgspec.structs.replace(node.inventory, findings=[worse])
        told = [finding["severity"] for finding in (await plane.get("server"))["problems"]]
        assert set(told) == {"error", "warning"}
        assert told == sorted(told)

    with_plane(body)


def test_a_gpu_that_went_from_under_a_shard_is_an_error_with_what_to_type(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        node = plane.hub.fleet.nodes["n1"]
        _, shard = plane.hub.fleet.shards_on("n1")[0]
        kept = [gpu for gpu in node.gpus if gpu.uuid not in shard.spec.gpus]
        node.inventory = msgspec.structs.replace(node.inventory, gpus=kept)
        finding = (await problems(plane))["gpu-gone"]
        assert finding["severity"] == "error"
        assert shard.shard_id in finding["what"]
        assert shard.spec.gpus[0] in finding["what"]
        assert "llmgw ctl drain n1" in finding["remedy"]
        (view,) = (view for view in await plane.get("nodes") if view["node_id"] == "n1")
        assert finding in view["findings"]

    with_plane(body)


def test_nodes_that_are_away_and_replicas_out_of_the_rotation_are_problems(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        plane.hub.fleet.nodes["n1"].state = NodeState.LOST
        plane.hub.fleet.nodes["n2"].state = NodeState.UNREACHABLE
        next(iter(plane.hub.fleet.replicas.values())).suspended = "no progress for 120 s while requests run"
        found = await problems(plane)
        assert found["node-lost"]["where"] == "n1"
        assert found["node-unreachable"]["where"] == "n2"
        assert "no progress for 120 s" in found["replica-stalled"]["what"]

    with_plane(body)


def test_a_node_that_is_away_since_its_certificate_ended_says_that_it_did(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        node = plane.hub.fleet.nodes["n1"]
        node.certificate_expires_at = plane.hub.clock.wall() - 60
        assert "certificate-expired" not in await problems(plane), "it is heard, so it has another"
        node.state = NodeState.UNREACHABLE
        finding = (await problems(plane))["certificate-expired"]
        assert finding["where"] == "n1"
        assert finding["what"].startswith("n1 is unreachable, and its certificate expired on ")
        assert "`llmgw ctl cert renew n1`" in finding["remedy"]
        node.certificate_expires_at = plane.hub.clock.wall() + 60
        assert "certificate-expired" not in await problems(plane)

    with_plane(body)


def test_nodes_that_fall_silent_together_are_an_error_of_the_server_s_own_until_they_are_back(
    with_plane: WithPlane,
) -> None:
    async def body(plane: Plane) -> None:
        nodes = plane.hub.fleet.nodes.values()
        for node in nodes:
            node.last_heard -= 0.7 * plane.hub.settings.lost_after_s
        plane.hub.turn()
        finding = (await problems(plane))["mass-silence"]
        assert (finding["severity"], finding["where"]) == ("error", "server")
        assert finding["what"].startswith("n1, n2 fell silent together")
        assert "llmgw ctl node remove" in finding["remedy"]
        for node in nodes:
            node.last_heard = plane.hub.clock.monotonic() + 1
        plane.hub.turn()
        assert "mass-silence" not in await problems(plane)

    with_plane(body)


def test_a_suspect_node_is_a_warning_on_that_node_until_it_is_trusted_again(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        node = plane.hub.fleet.nodes["n1"]
        now, window_s = plane.hub.clock.monotonic(), plane.hub.settings.suspect_window_s
        node.suspect = "x/default, y/default, z/default failed here within 10m and run elsewhere"
        node.failures = [(now - window_s / 2, (model, "default")) for model in "xyz"]
        plane.hub.turn()
        finding = (await problems(plane))["suspect-node"]
        assert (finding["severity"], finding["where"]) == ("warning", "n1")
        assert "n1 is placed on last: x/default, y/default, z/default failed here" in finding["what"]
        assert "llmgw doctor" in finding["remedy"]
        assert "llmgw ctl cordon n1" in finding["remedy"]
        views = {view["node_id"]: view["findings"] for view in await plane.get("nodes")}
        assert views == {"n1": [finding], "n2": []}
        node.failures = [(at - window_s, key) for at, key in node.failures]
        plane.hub.turn()
        assert "suspect-node" not in await problems(plane)
        (event,) = [item for item in await plane.get("history?subject=n1") if item["event"] == "trusted again"]
        assert event["reason"] == "nothing failed there for 10m"

    with_plane(body)


def test_a_profile_without_a_place_and_one_whose_starts_fail_are_problems(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        await plane.apply(model(replicas=100))
        plane.hub.turn()
        fill(plane)
        plane.hub.turn()
        found = await problems(plane)
        assert "llmgw ctl explain a" in found["profile-unplaced"]["remedy"]
        assert "2 nodes have too few free GPUs" in found["profile-unplaced"]["what"]
        form = plane.hub.catalog.models[0].profile_hashes["default"]
        plane.hub.fleet.backoff["a", "default"] = Backoff(3, 1050.0, "rank 0 on n1: CUDA", "a-9", form)
        found = await problems(plane)
        assert "profile-unplaced" not in found
        assert "failed 3 times in a row, the last: rank 0 on n1: CUDA" in found["profile-failing"]["what"]
        assert "tried again in 40 s" in found["profile-failing"]["why"]
        assert "llmgw ctl logs a-9" in found["profile-failing"]["remedy"]

    with_plane(body)


def test_a_roll_without_room_says_so_and_waits(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        fill(plane)
        await plane.apply(model(args=["--new"]))
        plane.hub.turn()
        why = "nothing else can take it"
        stuck = (await problems(plane))["move-stuck"]
        assert why in stuck["what"]
        assert "stop_first in the profile" in stuck["remedy"]
        assert "drain" not in stuck["remedy"], "no node is drained"
        assert why in (await the_model(plane))["reason"]
        assert all(why in replica["reason"] for replica in await plane.get("replicas"))
        assert why in (await plane.get("explain?model=a"))["profiles"][0]["summary"]

    with_plane(body)


def test_a_rollout_that_the_server_took_back_is_a_problem_until_the_next_revision(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        good = plane.hub.catalog.models[0].profile_hashes["default"]
        await plane.apply(model(args=["--bad"]))
        bad = plane.hub.catalog.models[0].profile_hashes["default"]
        stopped = StopRollout("a", "default", bad, good, "the new form failed 3 times, the last: CUDA")
        assert await roll_back(plane.backend.catalog, plane.store, stopped) == 3
        finding = (await problems(plane))["rollout-taken-back"]
        assert finding["where"] == "catalog revision 3"
        assert "a/default: the new form failed 3 times, the last: CUDA" in finding["what"]
        await plane.apply(model(args=["--mended"]))
        assert "rollout-taken-back" not in await problems(plane)

    with_plane(body)


def test_a_drain_names_what_cannot_be_moved_and_apart_from_it_what_is_under_way(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        keep_nodes(plane)
        done = (await plane.post("nodes/n1/drain")).json()
        assert done["warnings"] == []
        (view,) = (view for view in await plane.get("nodes") if view["node_id"] == "n1")
        assert view["drain_left"] == []
        assert any("waits until its replacement" in sentence for sentence in view["drain_waits"])
        assert len(view["drain_waits"]) == len(view["replicas"])
        both = (await plane.post("nodes/n2/drain")).json()
        assert all("nothing else can take it" in sentence for sentence in both["warnings"])
        assert "`llmgw ctl drain n2 --force`" in (await problems(plane))["move-stuck"]["remedy"]

    with_plane(body)


def test_taking_back_one_of_cordon_and_drain_does_not_say_that_the_node_takes_shards(
    with_plane: WithPlane,
) -> None:
    async def body(plane: Plane) -> None:
        keep_nodes(plane)
        await plane.post("nodes/n1/drain")
        await plane.post("nodes/n1/cordon")
        undrained = (await plane.post("nodes/n1/undrain")).json()["message"]
        assert "takes no new shards, since it is cordoned" in undrained
        assert (await plane.post("nodes/n1/uncordon")).json()["message"] == "n1 takes new shards again"

    with_plane(body)


def test_scaling_warns_only_of_what_cannot_be(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        assert (await plane.post("scale", model="a", replicas=6)).json()["warnings"] == []
        assert (await plane.post("scale", model="a", replicas=5)).json()["warnings"] == []
        (warning,) = (await plane.post("scale", model="a", replicas=500)).json()["warnings"]
        assert "cannot be placed: needs 1 node with 1 free GPU" in warning

    with_plane(body)


def test_what_a_node_that_is_not_heard_holds_is_given_up_only_by_force(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        plane.hub.fleet.nodes["n1"].state = NodeState.UNREACHABLE
        message = await plane.refused(await plane.delete("nodes/n1"), 409, "serving")
        assert "--force gives them up" in message
        await plane.refused(await plane.delete("nodes/n1?force=2"), 400, "bad-request")
        assert (await plane.delete("nodes/n1?force=1")).status_code == 200
        assert "n1" not in plane.hub.fleet.nodes

    with_plane(body)


def test_a_node_that_is_there_is_removed_only_when_it_is_drained_and_empty(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        plane.store.put_node("n1", NOW)
        assert "drain n1" in await plane.refused(await plane.delete("nodes/n1"), 409, "not-drained")
        await plane.post("scale", model="a", replicas=0, confirmed=True)
        for replica in list(plane.hub.fleet.replicas.values()):
            del plane.hub.fleet.replicas[replica.replica_id]
        message = await plane.refused(await plane.delete("nodes/n1"), 409, "not-drained")
        assert "n1 is ready and not drained" in message
        drained = await plane.post("nodes/n1/drain")
        assert drained.status_code == 200, drained.text
        assert "its history stays" in (await plane.delete("nodes/n1")).json()["message"]
        assert "n1" not in plane.hub.fleet.nodes

    with_plane(body)
