"""A port goes down under a running replica of several nodes: told at once, routed around, replaced.

In real processes; the times are short by `liveness:`; the rule is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llmgw.sim.hardware import set_port
from tests.endtoend.conftest import RunningFleet, until


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    """Two fabrics with room for one gang each, and one gang."""
    running = RunningFleet(
        tmp_path_factory.mktemp("ports") / "demo",
        replicas_big=1,
        replicas_small=1,
        liveness={"port_down_suspend": "2s", "port_down_fail": "12s"},
    )
    try:
        running.wait_ready(1, 1)
        yield running
    finally:
        running.close()


def gang(fleet: RunningFleet) -> dict[str, Any]:
    (replica,) = fleet.ready("demo/big")
    return replica


def finding(fleet: RunningFleet) -> dict[str, Any] | None:
    problems = fleet.get("server")["problems"]
    return next((each for each in problems if each["check"] == "replica-fabric-down"), None)


def test_a_port_that_comes_back_in_time_costs_a_replica_only_its_requests(gangs: RunningFleet) -> None:
    replica = gang(gangs)
    hardware = gangs.demo.folder / replica["nodes"][1] / "hardware"
    set_port(hardware, "mlx5_1", "down")
    try:
        found = until(lambda: finding(gangs), 10, gangs.story)
        assert found["where"] == replica["replica_id"]
        assert f"{replica['nodes'][1]}: mlx5_1 port 1 is not up" in found["what"]
        until(lambda: not gang(gangs)["routed"], 10, gangs.story)
        assert "out of the rotation: ib-" in gang(gangs)["reason"]
        assert gangs.chat("demo/big").status_code == 503
    finally:
        set_port(hardware, "mlx5_1", "active")
    until(lambda: gang(gangs)["routed"], 10, gangs.story)
    assert gang(gangs)["replica_id"] == replica["replica_id"]
    assert finding(gangs) is None
    assert gangs.chat("demo/big").status_code == 200
    told = [event for event, _ in gangs.history(replica["replica_id"])]
    assert told[-3:] == ["fabric down", "cut off", "fabric up"]


def test_a_port_that_stays_down_has_the_replica_replaced_on_another_fabric(gangs: RunningFleet) -> None:
    replica = gang(gangs)
    down_on = replica["nodes"][0]
    hardware = gangs.demo.folder / down_on / "hardware"
    set_port(hardware, "mlx5_0", "down")
    try:
        until(
            lambda: [r for r in gangs.ready("demo/big") if r["replica_id"] != replica["replica_id"]],
            40,
            gangs.story,
        )
        moved = gang(gangs)
        assert moved["fabric"] != replica["fabric"]
        assert down_on not in moved["nodes"]
        reasons = [reason for event, reason in gangs.history(replica["replica_id"]) if event == "failed"]
        assert "has been down under it for 1" in reasons[0]
        assert f"{down_on}: mlx5_0 port 1" in reasons[0]
        assert gangs.chat("demo/big").status_code == 200
        explained = gangs.ctl("explain", "demo/big").stdout
        assert "has no usable fabric for a replica of several nodes" in explained
    finally:
        set_port(hardware, "mlx5_0", "active")
