"""What an operator types, against a real fleet, by real processes."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.endtoend.conftest import RunningFleet, until
from tests.pages.visitor import Visitor


def test_nodes_replicas_explain_and_history_tell_the_same_story(fleet: RunningFleet) -> None:
    nodes = {node["node_id"]: node for node in fleet.ctl_json("nodes")}
    replicas = fleet.ctl_json("replicas")
    explained = fleet.ctl_json("explain", "demo/big")
    history = fleet.ctl_json("history", "--limit", "500")
    assert set(nodes) == {"node01", "node02", "node03", "node04"}
    for replica in replicas:
        for shard in replica["shards"]:
            assert replica["replica_id"] in nodes[shard["node"]]["replicas"]
            assert set(shard["gpus"]) <= set(nodes[shard["node"]]["gpus_in_use"])
        events = [item["event"] for item in reversed(history) if item["subject"] == replica["replica_id"]]
        assert events[:2] == ["starting", "ready"]
    placed = explained["profiles"][0]["placed"]
    assert placed == {r["replica_id"]: r["nodes"] for r in replicas if r["model"] == "demo/big"}


@pytest.mark.parametrize(
    "command", ["nodes", "replicas", "fabrics", "models", "explain demo/small", "history", "status", "token list"]
)
def test_every_table_is_readable_and_every_json_parses(fleet: RunningFleet, command: str) -> None:
    assert fleet.ctl(*command.split()).stdout.strip()
    assert fleet.ctl_json(*command.split()) is not None


def test_logs_of_any_rank_are_read_from_anywhere(fleet: RunningFleet) -> None:
    replica = fleet.ready("demo/big")[0]["replica_id"]
    assert "listening" in fleet.ctl("logs", replica).stdout
    assert fleet.ctl("logs", replica, "--rank", "1").stdout.strip()
    unknown = fleet.ctl("logs", replica, "--rank", "7", ok=False)
    assert unknown.returncode == 1
    assert "rank" in unknown.stderr


def test_the_pages_of_a_model_its_logs_and_the_history_say_what_ctl_says(fleet: RunningFleet) -> None:
    written = json.loads((fleet.demo.state / "admin.json").read_text())
    visitor = Visitor(written["url"])
    assert visitor.log_in(written["token"]).status_code == 303
    assert fleet.chat("demo/big").status_code == 200
    replica = fleet.ready("demo/big")[0]
    page = visitor.http.get("/admin/models/demo/big")
    assert page.status_code == 200
    for words in (replica["replica_id"], replica["endpoint"], *replica["nodes"], "2 of 2 ready"):
        assert words in page.text
    log = visitor.http.get(f"/admin/replicas/{replica['replica_id']}/logs?rank=1")
    assert log.status_code == 200
    assert log.text.count("<div>") > 1
    piece = fleet.get(f"replicas/{replica['replica_id']}/logs")
    assert "engine" in piece["streams"]
    history = visitor.http.get("/admin/history?model=demo/big&kind=replica").text
    assert f'href="/admin/replicas/{replica["replica_id"]}"' in history
    assert visitor.http.get("/admin/models/demo/nope").status_code == 404


def test_scaling_up_and_down(fleet: RunningFleet) -> None:
    fleet.ctl("scale", "demo/small", "3")
    fleet.wait_ready(small=3)
    fleet.ctl("scale", "demo/small", "2")
    fleet.wait_ready(small=2)
    until(lambda: len([r for r in fleet.get("replicas") if r["model"] == "demo/small"]) == 2)
    assert fleet.ctl("scale", "demo/small", "-1", ok=False).returncode != 0
    assert "demo/big" in fleet.ctl("scale", "nope", "1", ok=False).stderr


def test_a_restart_brings_the_replacement_up_first(fleet: RunningFleet) -> None:
    old = fleet.ready("demo/small")[0]["replica_id"]
    fleet.ctl("restart", old)
    until(lambda: old not in {r["replica_id"] for r in fleet.get("replicas")}, 30, fleet.story)
    history = list(reversed(fleet.ctl_json("history", "--limit", "200")))
    drained = next(i for i, item in enumerate(history) if item["subject"] == old and item["event"] == "draining")
    replaced_by = history[drained]["reason"].rpartition(" ")[2]
    ready = next(i for i, x in enumerate(history) if x["subject"] == replaced_by and x["event"] == "ready")
    assert ready < drained
    fleet.wait_ready()


def test_a_drained_node_is_emptied_and_takes_nothing_until_undrained(fleet: RunningFleet) -> None:
    refused = fleet.ctl("scale", "demo/big", "1", ok=False)
    assert "it would stop 1 of 4 ready replicas" in refused.stderr
    fleet.ctl("scale", "demo/big", "1", "--yes")
    fleet.wait_ready(big=1)
    node = fleet.ready("demo/small")[0]["nodes"][0]
    fleet.ctl("drain", node)
    until(
        lambda: not next(n for n in fleet.get("nodes") if n["node_id"] == node)["gpus_in_use"],
        40,
        fleet.story,
    )
    # The server's next life knows the flag, before and after it has heard the node.
    fleet.demo.kill_server()
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    until(lambda: not fleet.get("server")["settling"], 20)
    fleet.wait_ready(big=1)
    view = next(n for n in fleet.ctl_json("nodes") if n["node_id"] == node)
    assert (view["state"], view["draining"], view["replicas"]) == ("ready", True, [])
    fleet.ctl("undrain", node)
    fleet.ctl("scale", "demo/big", "2")
    fleet.wait_ready()


def test_cordon_only_stops_placement(fleet: RunningFleet) -> None:
    before = {r["replica_id"] for r in fleet.ready()}
    fleet.ctl("cordon", "node03")
    tally = {
        item["reason"]: item["nodes"]
        for item in fleet.ctl_json("explain", "demo/small")["profiles"][0]["refused"]
    }
    assert tally["is cordoned"] == ["node03"]
    assert {r["replica_id"] for r in fleet.ready()} == before
    fleet.ctl("uncordon", "node03")


def test_an_engine_that_is_killed_is_seen_at_once_and_replaced(fleet: RunningFleet) -> None:
    replica = fleet.ready("demo/small")[0]
    pid = replica["shards"][0]["engine_pid"]
    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    until(lambda: replica["replica_id"] not in {r["replica_id"] for r in fleet.ready()}, 5, fleet.story)
    assert time.monotonic() - started < 5
    fleet.wait_ready()
    words = fleet.ctl("logs", replica["replica_id"]).stdout
    assert "SIGKILL" in words


def test_tokens_have_names_and_end_when_revoked(fleet: RunningFleet) -> None:
    made = fleet.ctl_json("token", "create", "night-shift")
    assert made["token"] not in fleet.ctl("token", "list").stdout
    used = fleet.ctl("nodes", "--server", fleet.demo.admin, "--token", made["token"])
    assert "node01" in used.stdout
    fleet.ctl("token", "revoke", "night-shift")
    refused = fleet.ctl("nodes", "--server", fleet.demo.admin, "--token", made["token"], ok=False)
    assert refused.returncode == 1
    assert "token" in refused.stderr


def test_failures_are_one_sentence_and_non_zero(fleet: RunningFleet) -> None:
    for arguments in (
        ("drain", "node99"),
        ("explain", "nope"),
        ("restart", "nope"),
        ("node", "remove", "node99", "--yes"),
        ("nodes", "--server", "http://127.0.0.1:1", "--token", "x"),
        ("nodes", "--server", "http://10.0.0.1:8081", "--token", "x"),
        ("logs", "nope"),
    ):
        done = fleet.ctl(*arguments, ok=False)
        assert done.returncode == 1, arguments
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_node_that_cannot_be_emptied_is_not_removed(fleet: RunningFleet) -> None:
    fleet.wait_ready()
    (served,) = (replica for replica in fleet.ready("demo/big") if "node01" in replica["nodes"])
    others = ("node02", "node03", "node04")
    for node in others:
        fleet.ctl("cordon", node)
    done = fleet.ctl("node", "remove", "node01", "--yes", ok=False)
    assert done.returncode == 1
    assert "node01 cannot be emptied: " in done.stderr
    assert served["replica_id"] in done.stderr
    assert served["replica_id"] in {replica["replica_id"] for replica in fleet.ready("demo/big")}
    assert fleet.node("node01")["draining"]
    for node in others:
        fleet.ctl("uncordon", node)
    fleet.ctl("undrain", "node01")
