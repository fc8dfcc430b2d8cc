"""What a server makes of failures on one node, and of a silence that is its own: suspects and mass silence."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from llmgw.sim.demo_fleet import DemoFleet
from tests.endtoend.conftest import RunningFleet, edited, until

MODELS = ("m0", "m1", "m2")
BAD, GOOD = "node01", "node02"
WINDOW_S = 15
LIVE = ("starting", "ready")


def adjust(demo: DemoFleet) -> None:
    """Three models, each of them on both nodes."""
    profile = {"engine": "sim", "gpus_per_node": 1, "replicas": 2, "args": ["--load-s", "0.1"]}
    with edited(demo.folder / "server.yaml") as config:
        config["models"] = [{"name": name, "profiles": [profile]} for name in MODELS]
    for node in demo.nodes:
        with edited(demo.folder / node / "agent.yaml") as config:
            config["heartbeat_interval"] = "500ms"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    running = RunningFleet(
        tmp_path_factory.mktemp("distrust") / "demo",
        adjust=adjust,
        nodes={BAD: ("127.0.0.61", "ib-a"), GOOD: ("127.0.0.62", "ib-a")},
        liveness={"lost_after": "6s", "suspect_window": f"{WINDOW_S}s"},
    )
    try:
        until(lambda: len(running.ready()) == 2 * len(MODELS), 40, running.story)
        yield running
    finally:
        running.close()
    assert not running.demo.engines(), "engines were left behind"


def problem(fleet: RunningFleet, check: str) -> dict[str, Any] | None:
    return next((found for found in fleet.get("server")["problems"] if found["check"] == check), None)


def shown(fleet: RunningFleet, *command: str) -> str:
    """What `ctl` prints, in one line: tables and findings break theirs."""
    return re.sub(r"\s+", " ", fleet.ctl(*command).stdout)


def places(fleet: RunningFleet, model: str) -> list[str]:
    """The nodes of its replicas that serve, or will."""
    live = [each for each in fleet.get("replicas") if each["model"] == model and each["state"] in LIVE]
    return sorted(replica["nodes"][0] for replica in live)


def test_a_node_on_which_three_profiles_fail_that_run_elsewhere_is_placed_on_last_until_it_is_trusted_again(
    fleet: RunningFleet,
) -> None:
    assert {model: places(fleet, model) for model in MODELS} == {model: [BAD, GOOD] for model in MODELS}
    # While they are moved nothing may start there, so that what is placed afterwards says what the server thinks.
    fleet.run(fleet.demo.post(f"nodes/{BAD}/cordon", {}))
    for engine in fleet.demo.engines(BAD):
        os.kill(engine, signal.SIGKILL)
    finding = until(lambda: problem(fleet, "suspect-node"), 15, fleet.story)
    assert finding["where"] == BAD
    until(lambda: all(places(fleet, model) == [GOOD, GOOD] for model in MODELS), 5, fleet.story)
    fleet.run(fleet.demo.post(f"nodes/{BAD}/uncordon", {}))
    fleet.run(fleet.demo.post("scale", {"model": "m0", "replicas": 3}))
    until(lambda: len(places(fleet, "m0")) == 3, 5, fleet.story)
    assert places(fleet, "m0") == [GOOD] * 3, "the empty node would have come first"

    said = f"m0/default, m1/default, m2/default failed here within {WINDOW_S}s and run elsewhere"
    with ThreadPoolExecutor() as pool:
        nodes, status = pool.map(lambda command: shown(fleet, command), ["nodes", "status"])
    assert f"{BAD} is placed on last: {said}" in nodes
    assert f"WARNING: {BAD}: {BAD} is placed on last: {said}" in status
    assert f"what to do: run `llmgw doctor` there; `llmgw ctl cordon {BAD}` keeps it out" in status
    assert ("suspect", said) in fleet.history(BAD)

    until(lambda: problem(fleet, "suspect-node") is None, WINDOW_S + 5)
    assert fleet.history(BAD)[-1] == ("trusted again", f"nothing failed there for {WINDOW_S}s")
    assert "is placed on last" not in shown(fleet, "nodes")
    fleet.run(fleet.demo.post("scale", {"model": "m0", "replicas": 4}))
    until(lambda: BAD in places(fleet, "m0"), 5, fleet.story)
    until(lambda: len(fleet.ready("m0")) == 4, 20, fleet.story)


def test_nodes_that_all_fall_silent_together_are_doubted_where_somebody_looks(fleet: RunningFleet) -> None:
    before = {replica["replica_id"] for replica in fleet.ready()}
    for node in (BAD, GOOD):
        fleet.demo.freeze(node)
    try:
        until(lambda: problem(fleet, "mass-silence"), 15)
        status = shown(fleet, "status")
        assert f"ERROR: server: {BAD}, {GOOD} fell silent together; none of them is declared lost" in status
        until(lambda: all(fleet.node(node)["state"] == "unreachable" for node in (BAD, GOOD)), 15)
        # Of a node that holds nothing that is no news.
        assert "but most nodes fell silent with it" in shown(fleet, "nodes")
    finally:
        for node in (BAD, GOOD):
            fleet.demo.thaw(node)
    until(lambda: problem(fleet, "mass-silence") is None, 15)
    until(lambda: {replica["replica_id"] for replica in fleet.ready()} == before, 15, fleet.story)
    assert not any(event == "lost" for node in (BAD, GOOD) for event, _ in fleet.history(node))
