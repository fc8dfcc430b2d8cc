"""`ctl fabric-test` through a real server and real agents, whose programs speak perftest's command line."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.endtoend.conftest import until
from tests.endtoend.fabric_fleet import FabricFleet


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricFleet]:
    running = FabricFleet(tmp_path_factory.mktemp("fabric") / "demo")
    try:
        yield running
    finally:
        running.close()
    assert not running.running(), "ends of tests were left behind"


@pytest.fixture
def fleet(tested: FabricFleet) -> Iterator[FabricFleet]:
    tested.no_faults()
    yield tested
    assert not tested.running(), "ends of a test were left behind"


def measured(fleet: FabricFleet, *arguments: str) -> tuple[int, dict[str, Any]]:
    """(exit code, the test as JSON)."""
    done = fleet.ctl("fabric-test", *arguments, "-o", "json", ok=False, timeout_s=60)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_two_nodes_are_measured_rail_by_rail_in_both_directions(fleet: FabricFleet) -> None:
    code, test = measured(fleet, "node01", "node02")
    assert code == 0, test
    assert (test["state"], test["fabric"], test["planned"], test["done"]) == ("done", "ib-a", 4, 4)
    assert [
        (one["rail"], one["sender"], one["sender_port"], one["receiver"], one["receiver_port"])
        for one in test["results"]
    ] == [
        (1, "node01", "mlx5_0:1", "node02", "mlx5_0:1"),
        (2, "node01", "mlx5_1:1", "node02", "mlx5_1:1"),
        (1, "node02", "mlx5_0:1", "node01", "mlx5_0:1"),
        (2, "node02", "mlx5_1:1", "node01", "mlx5_1:1"),
    ]
    assert {(one["gbps"], one["limit_gbps"], one["limited_by"], one["grade"]) for one in test["results"]} == {
        (390.0, 400.0, "the link", "good")
    }


def test_both_ends_are_told_alike_and_the_client_where_to_go(fleet: FabricFleet) -> None:
    measured(fleet, "node01", "node02", "--seconds", "3")
    client, server = fleet.perftests["node01"].calls()[-1], fleet.perftests["node02"].calls()[-2]
    # The last measurement was from node02 to node01; the one before it on node01 was its server's.
    roles = [call[0] for call in fleet.perftests["node01"].calls()[-4:]]
    assert roles == ["client", "client", "server", "server"]
    client = fleet.perftests["node01"].calls()[-3]
    server = fleet.perftests["node02"].calls()[-3]
    assert server[2:6] == ["-d", "mlx5_1", "-i", "1"]
    assert server[8:] == ["-s", "8388608", "-D", "3", "-F", "--report_gbits"]
    assert client[2:-1] == server[2:]
    assert client[-1] == fleet.node("node02")["address"]


def test_a_table_shows_each_rail_and_what_was_not_good(fleet: FabricFleet) -> None:
    fleet.perftests["node02"].faults(mlx5_1={"gbps": 300.0})
    done = fleet.ctl("fabric-test", "node01", "node02", ok=False, timeout_s=60)
    assert done.returncode == 1
    assert "RAIL" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if "mlx5_1:1" in line]
    assert [row[:8] for row in rows] == [
        ["2", "node01", "mlx5_1:1", "node02", "mlx5_1:1", "300.0", "400.0", "degraded"],
        ["2", "node02", "mlx5_1:1", "node01", "mlx5_1:1", "300.0", "400.0", "degraded"],
    ]
    assert "75 % of what the link carries" in done.stdout
    assert "ib-a: 2 of 4 measurements are good" in done.stdout
    assert "testing node01 and node02 on ib-a: 4 measurements of 5 s" in done.stderr
    assert "[4 of 4] rail 2: node02 mlx5_1:1 → node01 mlx5_1:1: 300.0 Gb/s, degraded" in done.stderr


def test_a_rail_below_seventy_percent_is_bad(fleet: FabricFleet) -> None:
    fleet.perftests["node01"].faults(mlx5_0={"gbps": 92.57})
    code, test = measured(fleet, "node01", "node02")
    assert code == 1
    assert [one["grade"] for one in test["results"]] == ["bad", "good", "bad", "good"]
    assert test["results"][0]["gbps"] == 92.57


def test_an_error_has_perftests_own_words_and_the_other_rails_are_measured(fleet: FabricFleet) -> None:
    fleet.perftests["node01"].faults(mlx5_0={"client": "refused"})
    code, test = measured(fleet, "node01", "node02")
    assert code == 1
    assert [one["grade"] for one in test["results"]] == ["error", "good", "good", "good"]
    assert test["results"][0]["gbps"] is None
    assert test["results"][0]["words"].startswith("node01: Couldn't connect to 127.0.")


def test_a_server_end_that_crashes_is_named_with_its_node(fleet: FabricFleet) -> None:
    fleet.perftests["node02"].faults(mlx5_0={"server": "segfault"})
    _, test = measured(fleet, "node01", "node02")
    words = test["results"][0]["words"]
    assert test["results"][0]["grade"] == "error"
    assert "node02: its ib_write_bw was ended by signal 11" in words
    assert "node01: " in words


def test_a_client_end_that_crashes_is_an_error(fleet: FabricFleet) -> None:
    fleet.perftests["node01"].faults(mlx5_0={"client": "segfault"})
    _, test = measured(fleet, "node01", "node02")
    assert test["results"][0]["grade"] == "error"
    assert "node01: ib_write_bw was ended by signal 11" in test["results"][0]["words"]


def test_an_end_that_does_not_come_up_says_why(fleet: FabricFleet) -> None:
    root = fleet.demo.folder / "node02" / "perftest" / "perftest.json"
    settings = json.loads(root.read_text())
    root.write_text(json.dumps({**settings, "ib_root": "/nonexistent"}))
    try:
        _, test = measured(fleet, "node01", "node02")
    finally:
        root.write_text(json.dumps(settings))
    assert "node02: IB device mlx5_0 not found" in test["results"][0]["words"]


def test_ctrl_c_ends_both_ends(fleet: FabricFleet, tmp_path: Path) -> None:
    fleet.perftests["node01"].faults(any={"client": "hang"})
    with fleet.ctl_running("fabric-test", "node01", "node02", log=tmp_path / "log") as ctl:
        until(lambda: fleet.perftests["node01"].running() and fleet.perftests["node02"].running())
        ctl.process.send_signal(signal.SIGINT)
        assert ctl.process.wait(20) == 130
    assert not fleet.running()
    assert "ending the test on both nodes" in ctl.output
    assert "Traceback" not in ctl.output
    # Nobody holds the adapters any more.
    fleet.no_faults()
    assert measured(fleet, "node01", "node02")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_comes_twice_ends_both_ends_too(
    fleet: FabricFleet, tmp_path: Path, number: signal.Signals
) -> None:
    fleet.perftests["node01"].faults(any={"client": "hang"})
    with fleet.ctl_running("fabric-test", "node01", "node02", log=tmp_path / "log") as ctl:
        until(lambda: fleet.perftests["node01"].running() and fleet.perftests["node02"].running())
        # As `timeout` sends it: to its child, and then to the group.
        ctl.process.send_signal(number)
        time.sleep(0.002)
        ctl.process.send_signal(number)
        assert ctl.process.wait(20) == 130
    assert not fleet.running()
    assert " is ended" in ctl.output
    assert "Traceback" not in ctl.output


def test_an_agent_that_dies_leaves_nothing_running_and_the_test_says_so(fleet: FabricFleet) -> None:
    fleet.perftests["node01"].faults(mlx5_0={"client": "hang"})
    started = fleet.run(fleet.demo.post("fabric-tests", {"nodes": ["node01", "node02"], "detached": True}))
    until(lambda: fleet.perftests["node01"].running() and fleet.perftests["node02"].running())
    fleet.demo._processes["node01"].kill()
    until(lambda: not fleet.perftests["node01"].running())
    fleet.demo._processes["node01"].wait()
    fleet.no_faults()
    fleet.demo.start_agent("node01")
    test = until(lambda: ended(fleet, started["id"]), 60)
    assert test["results"][0]["grade"] == "error"
    assert "node01 was lost during the test, or its agent started again" in test["results"][0]["words"]
    fleet.wait_nodes()


def test_a_server_that_dies_leaves_nothing_running(fleet: FabricFleet, tmp_path: Path) -> None:
    fleet.perftests["node01"].faults(any={"client": "hang"})
    with fleet.ctl_running("fabric-test", "node01", "node02", log=tmp_path / "log") as ctl:
        until(lambda: fleet.perftests["node01"].running() and fleet.perftests["node02"].running())
        fleet.demo.kill_server()
        assert ctl.process.wait(40) == 2
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    # The agents' sessions are over, and what was asked in them with them.
    until(lambda: not fleet.running(), 30)
    fleet.wait_nodes()


def test_what_was_measured_before_the_server_died_is_shown(fleet: FabricFleet, tmp_path: Path) -> None:
    fleet.perftests["node01"].faults(mlx5_1={"client": "hang"})
    with fleet.ctl_running("fabric-test", "node01", "node02", log=tmp_path / "log") as ctl:
        until(lambda: "[1 of 4] rail 1" in ctl.output)
        fleet.demo.kill_server()
        assert ctl.process.wait(40) == 1
    assert "GB/S" in ctl.output
    assert "; 1 of 4 measurements were made, and are kept" in ctl.output
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    until(lambda: not fleet.running(), 30)
    fleet.wait_nodes()


def test_results_survive_the_server_and_can_be_listed(fleet: FabricFleet) -> None:
    code, test = measured(fleet, "node02", "node03")
    assert code == 0
    fleet.run(stop_server(fleet))
    fleet.demo.start_server()
    fleet.run(fleet.demo.wait_for_admin())
    kept = fleet.ctl_json("fabric-tests", "--node", "node03", "--limit", "4")
    assert kept == test["results"][::-1]
    table = fleet.ctl("fabric-tests", "--fabric", "ib-a").stdout
    assert "node03 mlx5_1:1" in table
    assert ("tested", "4 good of 4 measurements") in fleet.history("ib-a")
    fleet.wait_nodes()


def test_all_pairs_name_the_adapter_that_the_bad_ones_have_in_common(fleet: FabricFleet) -> None:
    fleet.perftests["node03"].faults(mlx5_1={"gbps": 120.0})
    code, test = measured(fleet, "--all-pairs", "--fabric", "ib-a")
    assert code == 1
    assert (test["planned"], test["done"], test["nodes"]) == (12, 12, ["node01", "node02", "node03"])
    [blamed] = test["blamed"]
    # Its switch is named once the fabric is mapped.
    assert blamed.replace(" to ib-a-leaf-2:", ":") == (
        "mlx5_1 of node03, or its cable: none of the 4 measurements with it is good"
    )
    assert sum(one["grade"] == "bad" for one in test["results"]) == 4

    # Placement reads it: the node is taken last, and `explain` says why.
    def comes_last() -> dict[str, str]:
        last: dict[str, str] = fleet.ctl_json("explain", "demo/big")["profiles"][0]["last"]
        return last

    until(lambda: "in the fabric test with" in comes_last().get("node03", ""), 15, fleet.story)
    assert comes_last().keys() == {"node03"}


def test_what_cannot_be_tested_is_a_sentence_and_exit_2(fleet: FabricFleet) -> None:
    for arguments, says in (
        (["node01", "node01"], "node01 is named twice"),
        (["node01", "node99"], "there is no node 'node99'; did you mean"),
        (["node01", "node04"], "share no fabric: node01 is on ib-a, node04 is on ib-b"),
        (["node01", "node02", "--fabric", "ib-b"], "node01 is not on ib-b; it is on ib-a"),
        (["--all-pairs"], "name one fabric with --fabric: ib-a, ib-b"),
        (["--all-pairs", "--fabric", "ib-b"], "ib-b has fewer than two nodes to test"),
        (["--all-pairs", "--fabric", "ib-c"], "no node declares a fabric 'ib-c'; the fabrics are ib-a, ib-b"),
        (["node01"], "a test is between two nodes, and 1 are named"),
        (["node01", "node02", "--rounds", "2"], "--rounds is for --all-pairs"),
    ):
        done = fleet.ctl("fabric-test", *arguments, ok=False)
        assert done.returncode == 2, done.stdout
        assert says in done.stderr, done.stderr
        assert not done.stdout


def test_a_missing_perftest_at_a_path_of_the_operators_own_is_not_installed(fleet: FabricFleet) -> None:
    path = fleet.perftests["node02"].path
    path.chmod(0o644)
    try:
        done = fleet.ctl("fabric-test", "node01", "node02", ok=False)
    finally:
        path.chmod(0o755)
    assert done.returncode == 2
    assert f"node02: {path} is not there, or not executable; correct discovery.ib_write_bw" in done.stderr


def test_a_node_that_serves_is_tested_only_when_that_is_asked_for(fleet: FabricFleet) -> None:
    fleet.ctl("cordon", "node04")
    fleet.ctl("scale", "demo/small", "1")
    try:
        until(lambda: fleet.ready("demo/small"), 40, fleet.story)
        node = fleet.ready("demo/small")[0]["nodes"][0]
        other = next(name for name in ("node01", "node02", "node03") if name != node)
        done = fleet.ctl("fabric-test", other, node, ok=False)
        assert done.returncode == 2
        assert f"{node} runs small-" in done.stderr
        assert "--busy-ok" in done.stderr
        # What would not work after a drain, either, is said before.
        done = fleet.ctl("fabric-test", node, "node04", ok=False)
        assert f"share no fabric: {node} is on ib-a, node04 is on ib-b" in done.stderr
        done = fleet.ctl("fabric-test", node, "node99", ok=False)
        assert "there is no node 'node99'" in done.stderr
        assert measured(fleet, other, node, "--busy-ok")[0] == 0
    finally:
        fleet.ctl("scale", "demo/small", "0", "--yes")
        until(lambda: not fleet.get("replicas"), 40, fleet.story)


def test_nodes_in_a_test_are_refused_to_others_until_it_is_ended(fleet: FabricFleet) -> None:
    fleet.perftests["node01"].faults(any={"client": "hang"})
    started = fleet.run(fleet.demo.post("fabric-tests", {"nodes": ["node01", "node02"]}))
    until(lambda: fleet.perftests["node02"].running())
    done = fleet.ctl("fabric-test", "node02", "node03", ok=False)
    assert done.returncode == 2
    assert f"node02 takes part in the test {started['id']} now" in done.stderr
    fleet.run(fleet.demo._ask("DELETE", f"/api/v1/fabric-tests/{started['id']}"))
    assert not fleet.running()
    test = fleet.get(f"fabric-tests/{started['id']}")
    assert (test["state"], test["results"]) == ("ended", [])
    assert test["reason"].startswith("ended by ")


def ended(fleet: FabricFleet, test_id: str) -> dict[str, Any] | None:
    test: dict[str, Any] = fleet.get(f"fabric-tests/{test_id}")
    return test if test["state"] != "running" else None


async def stop_server(fleet: FabricFleet) -> None:
    fleet.demo._processes["server"].terminate()
    fleet.demo._processes["server"].wait(20)


def test_replicas_of_several_nodes_wait_for_a_test_where_one_is_required(tmp_path: Path) -> None:
    required = {"placement": {"require_fabric_test": "7d"}}
    fleet = FabricFleet(tmp_path / "demo", server=required, replicas_big=1, replicas_small=1)
    try:
        until(lambda: fleet.ready("demo/small"), 40, fleet.story)
        told = fleet.ctl("explain", "demo/big").stdout
        assert "has not passed a test of the fabric lately enough" in told
        assert "never passed a test; llmgw ctl fabric-test" in told
        assert not fleet.ready("demo/big")
        assert measured(fleet, "node01", "node02", "--busy-ok")[0] == 0
        until(lambda: fleet.ready("demo/big"), 40, fleet.story)
        assert sorted(fleet.ready("demo/big")[0]["nodes"]) == ["node01", "node02"]
    finally:
        fleet.close()
