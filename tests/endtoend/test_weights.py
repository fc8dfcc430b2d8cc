"""A model given by a URL, in a real fleet: fetched once, shown on its way, and not lost with anybody."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from llmgw.sim.demo_fleet import DemoFleet
from tests.agent.file_server import FileServer
from tests.endtoend.conftest import RunningFleet, edited, until

MIB = 2**20
CONTENT = b"GGUF" + os.urandom(12 * MIB)
HELD_AFTER = 9 * MIB


@pytest.fixture(scope="module")
def files() -> Iterator[FileServer]:
    with FileServer(CONTENT) as server:
        server.held_after = HELD_AFTER
        yield server


@pytest.fixture(scope="module")
def fetching(files: FileServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    def adjust(demo: DemoFleet) -> None:
        with edited(demo.folder / "server.yaml") as config:
            config["models"] = [
                {
                    "name": "fetched",
                    "source": files.url("/models/tiny.gguf"),
                    "profiles": [{"engine": "sim", "gpus_per_node": 1, "replicas": 1}],
                },
                {
                    "name": "nowhere",
                    "source": "/no/such/model.gguf",
                    "profiles": [{"engine": "sim", "gpus_per_node": 1, "replicas": 1}],
                },
            ]

    nodes = {"node01": ("127.0.0.11", "ib-a")}
    running = RunningFleet(tmp_path_factory.mktemp("fleet") / "demo", adjust=adjust, nodes=nodes)
    try:
        yield running
    finally:
        files.gate.set()
        running.close()
    assert not running.demo.engines(), "engines were left behind"


def shard_of(fleet: RunningFleet) -> dict[str, Any]:
    for replica in fleet.get("replicas"):
        if replica["model"] == "fetched" and replica["shards"]:
            shard: dict[str, Any] = replica["shards"][0]
            return {**shard, "replica": replica["replica_id"]}
    return {"phase": None, "progress": None}


def held(fleet: RunningFleet) -> dict[str, Any] | None:
    shard = shard_of(fleet)
    there = shard["phase"] == "fetching" and (shard["progress"] or {}).get("done_bytes", 0) >= HELD_AFTER
    return shard if there else None


def test_a_download_outlives_server_and_agent_and_is_shown_until_the_model_serves(
    fetching: RunningFleet, files: FileServer
) -> None:
    fleet = fetching
    shard = until(lambda: held(fleet), 40, fleet.story)
    assert shard["progress"]["total_bytes"] == len(CONTENT)
    told = fleet.ctl("replicas").stdout
    assert "weights [#######---] 74 % (9.0 MiB of 12.0 MiB" in told, told
    assert fleet.ctl_json("replicas", shard["replica"])["shards"][0]["progress"]["done_bytes"] == HELD_AFTER

    fleet.demo.kill_server()
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    again = until(lambda: held(fleet), 40, fleet.story)
    assert again["replica"] == shard["replica"]
    assert len(files.asked) == 1

    os.kill(fleet.demo.pid("node01"), signal.SIGKILL)
    fleet.demo.start_agent("node01")
    until(lambda: len(files.asked) == 2, 40, fleet.story)
    continued = int(files.asked[1][1]["range"].removeprefix("bytes=").removesuffix("-"))
    assert 4 * MIB <= continued <= HELD_AFTER
    files.gate.set()
    until(lambda: shard_of(fleet)["phase"] == "ready", 40, fleet.story)
    assert shard_of(fleet)["progress"] is None
    assert shard_of(fleet)["replica"] == shard["replica"]
    until(lambda: fleet.chat("fetched").status_code == 200, 20)
    assert len(files.asked) == 2


def test_a_path_that_no_node_has_is_a_sentence_where_people_look(fetching: RunningFleet) -> None:
    until(lambda: "does not exist on this node" in fetching.ctl("explain", "nowhere").stdout, 40, fetching.story)


def test_what_is_on_the_disk_is_listed_and_removed_only_when_nothing_uses_it(
    fetching: RunningFleet, files: FileServer
) -> None:
    fleet = fetching
    until(lambda: shard_of(fleet)["phase"] == "ready", 40, fleet.story)
    name = f"http/127.0.0.1:{files.port}/models/tiny.gguf"
    [node] = fleet.ctl_json("models", "--on-disk")
    [file] = node["files"]
    assert (file["name"], file["state"], file["size_bytes"]) == (name, "complete", len(CONTENT))
    assert (file["models"], file["shards"], file["unused"]) == (["fetched"], [shard_of(fleet)["shard_id"]], False)
    assert "there is nothing to remove" in fleet.ctl("models", "--remove-unused", "--yes").stdout

    catalog = fleet.demo.folder / "catalog.yaml"
    catalog.write_text("models:\n  - name: other\n    profiles:\n      - {engine: sim, gpus_per_node: 1}\n")
    fleet.ctl("apply", str(catalog), "--yes")
    until(lambda: shard_of(fleet)["phase"] is None, 40, fleet.story)
    assert f"node01: {name}" in fleet.ctl("models", "--remove-unused", "--node", "node01", "--yes").stdout
    [node] = fleet.ctl_json("models", "--on-disk")
    assert node["files"] == []
    assert any("weights removed" in event for event, _ in fleet.history("node01"))
    refused = fleet.ctl("models", "--on-disk", "--node", "node09", ok=False)
    assert refused.returncode == 1
    assert "there is no node 'node09'" in refused.stderr
