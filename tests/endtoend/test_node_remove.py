"""`llmgw ctl node remove`: drained first, refused afterwards, over restarts, and enrolled anew like any other."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.pki.authority import Authority
from tests.endtoend.conftest import RunningFleet, llmgw, until


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    running = RunningFleet(tmp_path_factory.mktemp("remove") / "demo", replicas_big=1)
    try:
        running.wait_ready(big=1)
        yield running
    finally:
        running.close()


def serving(fleet: RunningFleet) -> str:
    """A node that a replica of `demo/small` runs on."""
    return min(nodes_of(replica) for replica in fleet.ready("demo/small"))[0]


def nodes_of(replica: dict[str, Any]) -> list[str]:
    return [shard["node"] for shard in replica["shards"]]


def refused(fleet: RunningFleet, node: str) -> bool:
    return any(f"{node} was {how} on" in fleet.demo.last_words(node, 50) for how in ("removed", "revoked"))


def names(fleet: RunningFleet) -> set[str]:
    return {node["node_id"] for node in fleet.get("nodes")}


def test_a_node_is_drained_forgotten_and_refused_and_its_history_stays(
    fleet: RunningFleet, tmp_path: Path
) -> None:
    node = serving(fleet)
    small = next(r["replica_id"] for r in fleet.ready("demo/small") if node in nodes_of(r))
    pki = fleet.demo.folder / "pki"
    said = fleet.ctl("node", "remove", node, "--yes", "--pki", str(pki), "-o", "json", timeout_s=60)
    done = json.loads(said.stdout)
    assert done["message"].startswith(f"{node} is removed")
    assert done["certificate"]["revoked"]
    assert len(done["certificate"]["serials"]) == 1
    assert f"{node} is draining" in said.stderr
    events = [event for event, _ in fleet.history(small)]
    assert events.index("draining") < events.index("stopped"), "moved in peace"
    fleet.wait_ready(big=1)
    assert node not in names(fleet)
    assert [event for event, _ in fleet.history(node)][-1] == "removed"
    until(lambda: refused(fleet, node), 20, lambda: fleet.demo.last_words(node, 50))
    assert [r.revoked for r in Authority.open(pki).list(time.time()) if r.name == node] == [True]

    fleet.demo.kill_server()
    (pki / "revoked.pem").rename(tmp_path / "revoked.pem")
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    fleet.wait_ready(big=1)
    assert node not in names(fleet)

    address = fleet.demo.nodes[node][0]
    out = tmp_path / "again"
    issued = llmgw(
        "ctl", "cert", "issue-client", node, "--address", address, "--pki", str(pki), "--out", str(out)
    )
    assert issued.returncode == 0, issued.stderr
    for name in ("agent-key.pem", "agent.pem"):
        (fleet.demo.folder / node / name).write_bytes((out / name).read_bytes())
    os.kill(fleet.demo.pid(node), signal.SIGTERM)
    fleet.demo.start_agent(node)
    until(lambda: node in names(fleet), 40, lambda: fleet.demo.last_words(node, 50))
    assert not fleet.node(node)["draining"]


def test_without_the_authority_the_server_refuses_it_all_the_same_and_says_what_to_type(
    fleet: RunningFleet, tmp_path: Path
) -> None:
    node = serving(fleet)
    done = fleet.ctl("node", "remove", node, "--yes", "--pki", str(tmp_path / "nowhere"), timeout_s=60)
    assert f"llmgw ctl cert revoke {node}" in done.stderr
    until(lambda: refused(fleet, node), 20, lambda: fleet.demo.last_words(node, 50))
    assert "llmgw ctl cert issue-client" in fleet.demo.last_words(node, 50)
    fleet.demo.kill_server()
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    until(lambda: not fleet.get("server")["settling"], 30)
    fleet.wait_ready(big=1)
    assert node not in names(fleet)


def test_a_node_that_is_ready_is_not_forgotten_before_it_is_empty(fleet: RunningFleet) -> None:
    (big,) = fleet.ready("demo/big")
    node = nodes_of(big)[0]
    refused = fleet.ctl("node", "remove", node, ok=False)
    assert refused.returncode == 2
    assert "needs --yes" in refused.stderr
    assert not fleet.node(node)["draining"]
