"""`ctl engine-check --node` through a real server and a real agent, which runs the engine's own program."""

from __future__ import annotations

from tests.endtoend.conftest import RunningFleet


def test_a_node_is_asked_what_its_engine_takes(fleet: RunningFleet) -> None:
    check = fleet.ctl_json("engine-check", "sim", "--node", "node01")
    assert (check["engine"], check["ok"], check["truncated"]) == ("sim", True, False)
    assert check["version"]
    flags = {each["flag"]: each for each in check["flags"]}
    assert flags["--rendezvous-host"]["ok"] is True
    assert "--rendezvous-host" in flags["--rendezvous-host"]["line"]


def test_the_arguments_of_a_profile_in_the_ruling_catalog_are_checked_on_a_node(fleet: RunningFleet) -> None:
    check = fleet.ctl_json("engine-check", "sim", "--node", "node02", "--profile", "demo/small")
    assert check["ok"] is True
    assert "--load-s" in [each["flag"] for each in check["flags"]]


def test_what_a_node_cannot_answer_is_a_sentence_and_exit_2(fleet: RunningFleet) -> None:
    for arguments, says in (
        (["vllm", "--node", "node01"], "node01: this node is not configured to run vllm"),
        (["sim", "--node", "node09"], "the nodes are node01"),
        (["sim", "--node", "node01", "--profile", "demo/none"], "there is no model"),
    ):
        done = fleet.ctl("engine-check", *arguments, ok=False)
        assert done.returncode == 2
        assert says in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
