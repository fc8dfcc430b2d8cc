"""A real server and agents on fabrics that real OpenSM runs: what `ctl` shows when a manager or a cable dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmgw.sim.demo_files import write_private
from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.fabric.change import set_sm_lid
from tests.endtoend.conftest import RunningFleet
from tests.lab.real_fabric import ask_managers, wait_for
from tests.lab.site import NODES, Site

pytestmark = pytest.mark.lab

ADDRESSES = {
    node: (f"127.0.0.{10 + int(node[-2:])}", fabric) for fabric, nodes in NODES.items() for node in sorted(nodes)
}


class Lab:
    """The fleet and the fabrics that it is on."""

    def __init__(self, folder: Path) -> None:
        self._sites: list[Site] = []
        try:
            self.fleet = RunningFleet(
                folder, adjust=self._adjust, nodes=ADDRESSES, replicas_big=0, replicas_small=0
            )
        except BaseException:
            self.stop_fabrics()
            raise
        [self.site] = self._sites

    def stop_fabrics(self) -> None:
        for site in self._sites:
            site.stop()

    def _adjust(self, demo: DemoFleet) -> None:
        site = Site(demo.folder)
        self._sites.append(site)
        site.start()
        for node in demo.nodes:
            path = demo.folder / node / "agent.yaml"
            config = yaml.safe_load(path.read_text())
            config["fabrics"][0]["rate_gbps"] = 200
            write_private(path, yaml.safe_dump(config))
        path = demo.folder / "server.yaml"
        config = yaml.safe_load(path.read_text())
        config["fabrics"] = {"managers_interval": "500ms", "map_interval": "1s"}
        write_private(path, yaml.safe_dump(config))

    def fabric(self, name: str) -> dict[str, Any]:
        """What `ctl fabrics` tells of one."""
        [found] = [one for one in self.fleet.get("fabrics") if one["name"] == name]
        return dict(found)

    def changes(self, name: str) -> list[dict[str, Any]]:
        """What `ctl fabric changes` tells, the newest first."""
        return list(self.fleet.get(f"fabrics/{name}/changes")["changes"])

    def is_known(self, name: str) -> bool:
        # Until the agents have registered nobody has named a fabric.
        told = [one for one in self.fleet.get("fabrics") if one["name"] == name]
        return bool(told and told[0]["master"] and len(told[0]["standbys"]) == 1 and told[0]["map"])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("lab") / "demo")
    try:
        for name in NODES:
            wait_for(lambda name=name: made.is_known(name), f"{name} is known whole")  # type: ignore[misc]
        yield made
    finally:
        try:
            made.fleet.close()
        finally:
            made.stop_fabrics()


def test_the_masters_death_changes_neither_identity_nor_map_and_leaves_no_standby(lab: Lab) -> None:
    before = lab.fabric("ib-b")
    first, second = lab.site.managers("ib-b")
    told = ask_managers(lab.site.hardware("node05"))
    assert before["master"]["guid"] == (told.master and told.master.guid)
    assert before["master"]["priority"] == 14
    assert [one["guid"] for one in before["standbys"]] == [told.standbys[0].guid]
    table = lab.fleet.ctl("fabrics").stdout
    for words in (before["master"]["guid"], first.split()[0], before["standbys"][0]["guid"], second.split()[0]):
        assert words in table
    assert not any("standby" in problem for problem in before["problems"])

    lab.site.fabrics["ib-b"].stop_manager(first)
    after = wait_for(
        lambda: (now := lab.fabric("ib-b"))["master"]["guid"] == before["standbys"][0]["guid"] and now,
        "the standby is master",
    )
    # The kernel is told by the new master; the simulated one by us.
    for node in NODES["ib-b"]:
        set_sm_lid(lab.site.hardware(node), after["master"]["lid"])
    assert after["id"] == before["id"]
    assert after["standbys"] == []
    assert any("no standby" in problem for problem in after["problems"])
    assert any("the master changed" in problem for problem in after["problems"])
    [change] = [one for one in lab.changes("ib-b") if one["kind"] == "master changed"]
    assert (change["before"], change["after"]) == (before["master"]["guid"], after["master"]["guid"])
    assert lab.fabric("ib-a")["id"] != after["id"]
    assert not any(one["kind"] == "master changed" for one in lab.changes("ib-a"))


def test_a_cable_that_was_pulled_is_in_the_maps_changes(lab: Lab) -> None:
    cables = lab.fabric("ib-a")["map"]["cables"]
    leaf = next(device for device in lab.site.plans["ib-a"].devices if device.label == "ib-a-leaf-4")
    lab.site.fabrics["ib-a"].unlink(f"S-{leaf.guid}", 36)
    gone = wait_for(
        lambda: [one for one in lab.changes("ib-a") if one["kind"] == "cable gone"], "the cable is gone"
    )
    assert len(gone) == 1
    assert "ib-a-leaf-4" in gone[0]["what"]
    assert "ib-a-leaf-4" in lab.fleet.ctl("fabric", "changes", "ib-a").stdout
    assert lab.fabric("ib-a")["map"]["cables"] == cables - 1
    assert lab.fabric("ib-a")["map"]["whole"]


def test_a_replica_of_several_nodes_goes_to_one_leaf_and_explain_says_so(lab: Lab) -> None:
    # By their names alone node01 and node02 would be taken, which share no leaf.
    lab.fleet.ctl("scale", "demo/big", "1")
    [replica] = wait_for(lambda: lab.fleet.ready("demo/big"), "the replica is ready")
    nodes = sorted({shard["node"] for shard in replica["shards"]})
    assert nodes in (["node01", "node03"], ["node02", "node04"])
    assert "one leaf on each rail" in lab.fleet.ctl("explain", "demo/big").stdout
