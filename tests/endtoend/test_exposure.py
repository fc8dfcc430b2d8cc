"""Who may talk to an engine, who knows its key, and whether its fabric is used: on a real fleet."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.sim.demo_files import NODES
from llmgw.sim.demo_fleet import DemoFleet
from tests.endtoend.conftest import Running, RunningFleet, edited, until
from tests.ports import free_port

NODES_USED = ("node01", "node02")
BIG, SMALL = "demo/big", "demo/small"
PORTS_PER_NODE = 3


def adjust(demo: DemoFleet) -> None:
    """Few ports on each node, and a big model whose ranks fall back to TCP."""
    low = free_port(demo.nodes["node01"][0]) % 20000 + 10000
    for node in NODES_USED:
        with edited(demo.folder / node / "agent.yaml") as config:
            config["supervisor"]["port_range"] = f"{low}-{low + PORTS_PER_NODE - 1}"
    with edited(demo.folder / "server.yaml") as config:
        for model in config["models"]:
            for profile in model["profiles"]:
                profile["args"] += ["--nccl-log", "socket"] if profile.get("nodes", 1) > 1 else []


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    running = RunningFleet(
        tmp_path_factory.mktemp("exposure") / "demo",
        adjust=adjust,
        nodes={node: NODES[node] for node in NODES_USED},
        replicas_big=1,
        replicas_small=1,
    )
    try:
        running.wait_ready(big=1, small=1)
        yield running
    finally:
        running.close()
    assert not running.demo.engines(), "engines were left behind"


def descriptions(fleet: RunningFleet) -> list[tuple[Path, dict[str, Any]]]:
    """Every live shard's description on its node's disk."""
    found = [
        (path, json.loads(path.read_text())) for path in fleet.demo.folder.glob("*/work/shards/*/shard.json")
    ]
    return [(path, record) for path, record in found if record["phase"] not in ("stopped", "failed")]


def keys(fleet: RunningFleet) -> dict[str, str]:
    """Replica → key of its leader's engine."""
    return {
        record["spec"]["replica_id"]: record["api_key"]
        for _, record in descriptions(fleet)
        if record["spec"]["rank"] == 0
    }


def ask_engine(endpoint: str, model: str, key: str | None) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with httpx.Client(trust_env=False, timeout=40) as client:
        return client.post(f"http://{endpoint}/v1/chat/completions", json=body, headers=headers).status_code


def test_an_engine_answers_the_gateway_and_nobody_who_goes_around_it(fleet: RunningFleet) -> None:
    known = keys(fleet)
    assert len(set(known.values())) == 2
    for replica in fleet.ready():
        endpoint, model = replica["endpoint"], replica["model"]
        assert ask_engine(endpoint, model, None) == 401
        assert ask_engine(endpoint, model, "sk-what-a-client-has") == 401
        assert ask_engine(endpoint, model, known[replica["replica_id"]]) == 200
        assert fleet.chat(model).status_code == 200
        # What a client proves itself with goes no further than the gateway; the engine would refuse it.
        client = {"authorization": "Bearer sk-what-a-client-has"}
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
        with httpx.Client(trust_env=False, timeout=40) as through:
            answer = through.post(f"{fleet.demo.api}/v1/chat/completions", json=body, headers=client)
        assert answer.status_code == 200
    workers = [record for _, record in descriptions(fleet) if record["spec"]["rank"] > 0]
    assert [record["api_key"] for record in workers] == [None]


def test_keys_are_in_no_answer_no_log_and_no_file_but_those_of_agents_and_routers(fleet: RunningFleet) -> None:
    secrets = list(keys(fleet).values())
    shown = [
        fleet.ctl(*words, "-o", "json").stdout
        for words in (["nodes"], ["replicas"], ["models"], ["history"], ["status"], ["explain", SMALL])
    ]
    for replica in fleet.ready():
        shown.append(fleet.ctl("logs", replica["replica_id"]).stdout)
        shown.append(fleet.ctl("replicas", replica["replica_id"], "-o", "json", ok=False).stdout)
    shown.append(httpx.get(f"{fleet.demo.admin}/metrics", trust_env=False).text)
    assert not [text for text in shown if any(secret in text for secret in secrets)]
    for engine in fleet.demo.engines():
        assert not any(secret.encode() in Path(f"/proc/{engine}/cmdline").read_bytes() for secret in secrets)
    holders = {
        path
        for path in fleet.demo.folder.rglob("*")
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in secrets)
    }
    assert holders
    assert {path.stat().st_mode & 0o777 for path in holders} == {0o600}
    others = {path for path in holders if path.name != "shard.json"}
    assert others
    assert all(path.is_relative_to(fleet.demo.state) and path.suffix != ".log" for path in others), others
    # The database is copied about; it holds none.
    assert not [path for path in others if path.name.startswith("llmgw.db")]


def test_a_key_outlives_the_agent_and_the_server(fleet: RunningFleet) -> None:
    before, engines = keys(fleet), fleet.demo.engines()
    for node in NODES_USED:
        os.kill(fleet.demo.pid(node), signal.SIGKILL)
        fleet.demo.start_agent(node)
    fleet.demo.kill_server()
    assert fleet.chat(SMALL).status_code == 200  # by the table on the router's disk
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    fleet.wait_ready(big=1, small=1)
    until(lambda: not fleet.get("server")["settling"], 30, fleet.story)
    assert keys(fleet) == before
    assert fleet.demo.engines() == engines
    assert [fleet.chat(model).status_code for model in (BIG, SMALL)] == [200, 200]


def test_a_replica_whose_nodes_talk_over_tcp_is_a_finding_on_each_of_them(fleet: RunningFleet) -> None:
    (replica,) = fleet.ready(BIG)

    def findings() -> list[dict[str, Any]]:
        return [
            finding
            for node in NODES_USED
            for finding in fleet.node(node)["findings"]
            if finding["check"] == "fabric-fallback"
        ]

    until(lambda: len(findings()) == 2, 20, fleet.story)
    assert {finding["where"] for finding in findings()} == {
        f"{node} {replica['replica_id']} rank {rank}" for rank, node in enumerate(replica["nodes"])
    }
    shown = re.sub(r"\s+", " ", fleet.ctl("nodes", "node01").stdout)
    assert "over TCP, not over ib-a: NCCL says 'Using network Socket'" in shown
    assert f"llmgw ctl restart {replica['replica_id']}" in shown


def test_a_worker_s_output_is_followed_over_a_restart_of_its_agent(fleet: RunningFleet, tmp_path: Path) -> None:
    (replica,) = fleet.ready(BIG)
    name, node = replica["replica_id"], replica["nodes"][1]
    (folder,) = (path.parent for path, record in descriptions(fleet) if record["spec"]["rank"] == 1)
    env = {"LLMGW_STATE": str(fleet.demo.state), "NO_COLOR": "1"}

    def writes(line: str) -> None:
        # As the engine does: at the end of its file, whoever cut it.
        with (folder / "engine.log").open("a") as out:
            out.write(line + "\n")

    with Running.llmgw("ctl", "logs", "-f", name, "--rank", "1", log=tmp_path / "follow", env=env) as following:
        following.says("rank 1 works for its leader")
        writes("said before the agent's end")
        following.says("said before the agent's end")
        os.kill(fleet.demo.pid(node), signal.SIGKILL)
        writes("said without an agent")
        fleet.demo.start_agent(node)
        following.says("said without an agent", 30)
        os.truncate(folder / "engine.log", 0)
        until(lambda: (folder / "engine.log.base").exists(), 20)
        writes("said after somebody emptied the file")
        following.says("said after somebody emptied the file", 30)
        assert following.output.count("said before the agent's end") == 1


def test_a_node_without_a_free_port_is_named(fleet: RunningFleet) -> None:
    # Three ports on each of two nodes: a big leader has two of one node, so that four small replicas have room.
    fleet.ctl("scale", SMALL, "5", "--yes")
    until(lambda: len(fleet.ready(SMALL)) == 4, 40, fleet.story)
    until(lambda: "has too few free ports" in fleet.ctl("explain", SMALL).stdout, 20, fleet.story)
    explained = re.sub(r"\s+", " ", fleet.ctl("explain", SMALL).stdout)
    with edited(fleet.demo.folder / "node01" / "agent.yaml") as config:
        ports = config["supervisor"]["port_range"]
    assert f"has no free port in {ports}; widen supervisor.port_range" in explained
    fleet.ctl("scale", SMALL, "1", "--yes")
    until(lambda: len(fleet.get("replicas")) == 2, 30, fleet.story)
