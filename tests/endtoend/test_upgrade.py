"""Agents become another release by `llmgw ctl upgrade`, and what goes wrong on the way stops there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from llmgw import __version__
from llmgw.cli.errors import EXIT_INTERRUPTED
from llmgw.sim.load import Load
from tests.endtoend.conftest import Running, edited, until
from tests.endtoend.upgradable import BROKEN, NEWER, NEWEST, OLDER, UpgradableFleet

pytestmark = pytest.mark.scenario

TWO = {"node01": ("127.0.0.11", "ib-a"), "node02": ("127.0.0.12", "ib-a")}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpgradableFleet]:
    upgradable = UpgradableFleet(tmp_path_factory.mktemp("upgrade"))
    try:
        upgradable.running.wait_ready()
        yield upgradable
    finally:
        upgradable.close()


def test_agents_are_upgraded_under_load_without_a_failed_request_and_with_the_same_engines(
    fleet: UpgradableFleet,
) -> None:
    release = fleet.publisher.release(NEWER, padding=9_000_000)
    engines = fleet.engine_pids()
    load = Load(fleet.demo.api, ["demo/big", "demo/small"])

    async def start() -> None:
        load.start()

    fleet.running.run(start())
    done = fleet.running.ctl("upgrade", "--to", str(release), timeout_s=150)
    fleet.running.run(load.stop())

    assert fleet.versions() == dict.fromkeys(fleet.demo.nodes, NEWER), done.stderr
    assert fleet.engine_pids() == engines
    assert not load.failed
    assert load.counts()["served"] > 10
    assert "4 of 4 nodes" in done.stdout
    assert f"upgraded from llmgw {__version__} to {NEWER}" in done.stdout
    assert until(lambda: not list((fleet.demo.state / "releases").iterdir()))
    assert [event for event, _ in fleet.running.history("node01") if event == "upgraded"] == ["upgraded"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpgradableFleet]:
    """Two nodes, of which the second has no release key. Its tests leave it as they found it, but for
    versions.
    """
    liveness = {"lost_after": "6s"}
    options = {"replicas_big": 1, "nodes": TWO, "liveness": liveness}
    upgradable = UpgradableFleet(tmp_path_factory.mktemp("pair"), without_key=["node02"], options=options)
    try:
        upgradable.running.wait_ready(big=1)
        yield upgradable
    finally:
        upgradable.close()


def refused(fleet: UpgradableFleet, release: Path, node: str, *more: str) -> str:
    """The sentence with which a node refuses a release; nothing has changed there then."""
    before, engines = (fleet.version(node), fleet.program(node)), fleet.engine_pids()
    done = fleet.running.ctl("upgrade", "--to", str(release), "--nodes", node, *more, ok=False, timeout_s=60)
    assert done.returncode == 1
    assert (fleet.version(node), fleet.program(node)) == before
    assert fleet.engine_pids() == engines
    assert fleet.states() == {node: "refused"}
    assert fleet.view()["state"] == "stopped"
    return str(fleet.view()["reason"])


def test_a_file_that_was_changed_after_it_was_signed_is_refused(pair: UpgradableFleet) -> None:
    release = pair.publisher.release(NEWER)
    with release.open("ab") as file:
        file.write(b"and this")
    assert "was not made with the release key" in refused(pair, release, "node01")


def test_a_file_that_somebody_else_has_signed_is_refused(pair: UpgradableFleet) -> None:
    release = pair.publisher.release(NEWER, key=Ed25519PrivateKey.generate())
    assert "was not made with the release key" in refused(pair, release, "node01")


def test_a_file_under_another_name_is_refused(pair: UpgradableFleet) -> None:
    old = pair.publisher.release(OLDER)
    disguised = old.with_name(old.name.replace(OLDER, NEWER))
    old.rename(disguised)
    old.with_name(f"{old.name}.sig").rename(disguised.with_name(f"{disguised.name}.sig"))
    assert "was not made with the release key" in refused(pair, disguised, "node01")


def test_a_node_without_a_release_key_refuses_every_file(pair: UpgradableFleet) -> None:
    sentence = refused(pair, pair.publisher.release(NEWER), "node02")
    assert "this node has no release key" in sentence
    problems = pair.running.ctl_json("status")["problems"]
    assert any(problem["check"] == "upgrade" and sentence in problem["what"] for problem in problems)
    pair.running.ctl("upgrade", "--cancel")
    assert not [p for p in pair.running.ctl_json("status")["problems"] if p["check"] == "upgrade"]


def test_an_older_version_is_taken_only_when_it_is_meant(pair: UpgradableFleet) -> None:
    release = pair.publisher.release(OLDER)
    assert f"older than llmgw {pair.version('node01')}" in refused(pair, release, "node01")
    done = pair.running.ctl(
        "upgrade", "--to", str(release), "--nodes", "node01", "--allow-downgrade", timeout_s=60
    )
    assert pair.version("node01") == OLDER, done.stderr
    nodes = pair.running.ctl("nodes").stdout
    assert f"its agent is llmgw {OLDER}, the server {__version__}" in nodes


def test_a_version_that_the_server_does_not_understand_is_refused_before_any_node_is_asked(
    pair: UpgradableFleet,
) -> None:
    before = pair.view()["id"]
    done = pair.running.ctl("upgrade", "--to", str(pair.publisher.release("0.3.0")), ok=False)
    assert done.returncode == 1
    assert "is not understood by this server" in done.stderr
    assert pair.view()["id"] == before


def test_a_release_that_does_not_take_the_configuration_is_not_switched_to(pair: UpgradableFleet) -> None:
    release = pair.publisher.release(NEWER, check="echo error: no such key >&2; exit 1")
    assert "does not take this node's configuration: no such key" in refused(pair, release, "node01")


def test_a_release_that_does_not_come_up_is_taken_back_and_the_roll_stops(pair: UpgradableFleet) -> None:
    release = pair.publisher.release(BROKEN, broken="exit 1")
    version, program, engines = pair.version("node01"), pair.program("node01"), pair.engine_pids()
    done = pair.running.ctl("upgrade", "--to", str(release), "--nodes", "node01,node02", ok=False, timeout_s=90)
    assert done.returncode == 1
    assert pair.states() == {"node01": "back", "node02": "waiting"}
    assert f"node01 went back to llmgw {version} because llmgw {BROKEN} was started 3 times" in done.stdout
    assert (pair.version("node01"), pair.program("node01")) == (version, program)
    assert pair.engine_pids() == engines


@pytest.mark.parametrize("status", [2, 78])
def test_a_release_after_whose_end_its_unit_starts_nothing_is_taken_back_too(
    pair: UpgradableFleet, status: int
) -> None:
    release = pair.publisher.release(BROKEN, broken=f"exit {status}")
    version, engines = pair.version("node01"), pair.engine_pids()
    done = pair.running.ctl("upgrade", "--to", str(release), "--nodes", "node01", ok=False, timeout_s=60)
    assert pair.states() == {"node01": "back"}, done.stderr
    assert f"because llmgw {BROKEN} ended with {status}" in done.stdout
    assert (pair.version("node01"), pair.engine_pids()) == (version, engines)


def test_a_release_that_registers_and_then_does_not_stay_is_taken_back_too(pair: UpgradableFleet) -> None:
    release = pair.publisher.release(BROKEN, broken="(sleep 6; kill -9 $$) & :")
    version, engines = pair.version("node01"), pair.engine_pids()
    done = pair.running.ctl("upgrade", "--to", str(release), "--nodes", "node01,node02", ok=False, timeout_s=90)
    assert pair.states() == {"node01": "back", "node02": "waiting"}, done.stderr
    assert (pair.version("node01"), pair.engine_pids()) == (version, engines)


def test_a_roll_goes_on_after_whoever_followed_it_left_and_the_server_was_killed(pair: UpgradableFleet) -> None:
    release = pair.publisher.release(NEWEST, padding=20_000_000)
    (pair.folder / "none.pub").write_bytes(pair.publisher.public_key)
    engines = pair.engine_pids()
    log, env = pair.folder / "ctl.log", {"LLMGW_STATE": str(pair.demo.state)}
    with Running.llmgw("ctl", "upgrade", "--to", str(release), log=log, env=env) as following:
        following.says("[1 of 2] node01:")
        following.process.send_signal(signal.SIGINT)
        assert following.process.wait(10) == EXIT_INTERRUPTED
        assert "the upgrade goes on in the server" in following.output
    pair.demo.kill_server()
    with edited(pair.demo.folder / "server.yaml") as config:
        config["liveness"]["settle"] = "30s"  # as long as an agent may take to be back on a busy machine
    pair.demo.start_server()
    pair.running.run(pair.demo.wait_for_admin())
    done = pair.running.ctl("upgrade", "--status", "--follow", timeout_s=90)
    assert pair.states() == {"node01": "upgraded", "node02": "upgraded"}, done.stderr
    assert pair.versions() == dict.fromkeys(TWO, NEWEST)
    assert pair.engine_pids() == engines


def test_a_node_whose_power_is_cut_in_the_middle_of_a_roll_is_named_and_the_next_goes_on(
    pair: UpgradableFleet,
) -> None:
    release = pair.publisher.release(NEWER, padding=20_000_000)
    pair.demo.freeze("node01")  # so that it is asked, and has not switched when its power goes
    pair.running.ctl("upgrade", "--to", str(release), "--no-follow", "--allow-downgrade")
    until(lambda: pair.states()["node01"] == "preparing")
    pair.demo.kill_node("node01")
    done = pair.running.ctl("upgrade", "--status", "--follow", ok=False, timeout_s=90)
    assert done.returncode == 1
    assert pair.states() == {"node01": "skipped", "node02": "upgraded"}
    assert "node01 is lost" in done.stdout
    assert pair.version("node02") == NEWER
