"""The demo's `ibnetdiscover` and `saquery` say what is there at that moment, in the words of the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw.fabric.changes import cabling_of, compare
from llmgw.fabric.managers import Managers, read_managers
from llmgw.fabric.records import parse_guid
from llmgw.fabric.report import Analysis, analyse, report_fabric
from llmgw.sim.fabric.change import elect, set_cable, start_managers, stop_manager
from llmgw.sim.fabric.plan import plan_fabric
from llmgw.sim.hardware import HardwareError, set_machine, set_port
from llmgw.sim.power import power_off
from tests.sim.demo_site import NODES, DemoSite


def mapped(site: DemoSite, node: str, *arguments: str) -> Analysis:
    done = site.run(node, "ibnetdiscover", *arguments)
    assert done.returncode == 0, done.stderr
    managers = read_managers(site.run(node, "saquery", "SMIR").stdout)
    return analyse(done.stdout, managers.guids, {one: site.ports(one) for one in NODES})


def managers(site: DemoSite, node: str, *arguments: str) -> Managers:
    done = site.run(node, "saquery", *(arguments or ("-C", "mlx5_0", "-P", "1")), "SMIR")
    return read_managers(done.stdout + done.stderr)


def names(analysis: Analysis) -> set[str]:
    return {node.label for node in analysis.topology.nodes.values()}


@pytest.mark.parametrize(("node", "mates"), [("node01", ["node01", "node02"]), ("node04", ["node03", "node04"])])
def test_a_map_has_two_tiers_rails_and_the_nodes_adapters_by_guid(
    site: DemoSite, node: str, mates: list[str]
) -> None:
    analysis = mapped(site, node, "-C", "mlx5_1", "-P", "1")
    report = report_fabric(analysis)
    assert (report.switches, report.hcas, report.sharp, report.links) == (6, 22, 1, 39)
    assert report.tiers == {"leaf": 4, "spine": 2, "core": 0}
    assert [rail.aligned for rail in report.rails] == [True, True]
    assert (report.unread_lines, report.one_sided, report.warnings) == (0, 0, [])
    owned = {(owner.node, owner.adapter) for owner in analysis.owners.values() if owner.known_by == "guid"}
    assert owned == {(mate, adapter) for mate in mates for adapter in ("mlx5_0", "mlx5_1")}


def test_lids_on_the_map_are_those_that_the_ports_report(site: DemoSite) -> None:
    topology = mapped(site, "node01").topology
    seen = {guid: node.lid for node in topology.of_kind("adapter") for guid in node.port_guids.values()}
    for port in [*site.ports("node01"), *site.ports("node02")]:
        assert seen[parse_guid((port.port_guid or "").replace(":", "")) or 0] == port.lid
    lids = [node.lid for node in topology.nodes.values()]
    assert len(set(lids)) == len(lids)


def test_the_planted_cable_of_the_first_fabric_is_the_only_slow_one(site: DemoSite) -> None:
    slow = report_fabric(mapped(site, "node01")).slow
    assert [(row.rate, row.expected, row.judged_by) for row in slow] == [("4xHDR", "4xNDR", "kinds")]
    assert {slow[0].a.name, slow[0].b.name} == {"MF0;ib-a-leaf-1:MQM9700/U1", "MF0;ib-a-spine-1:MQM9700/U1"}
    assert report_fabric(mapped(site, "node03")).slow == []


def test_a_port_that_goes_down_takes_its_adapter_off_the_map_and_comes_back(site: DemoSite) -> None:
    before = mapped(site, "node01")
    set_port(site.hardware("node02"), "mlx5_0", "down")
    assert names(before) - names(mapped(site, "node01")) == {"node02 mlx5_0"}
    set_port(site.hardware("node02"), "mlx5_0", "active")
    assert not compare(cabling_of(before.topology), cabling_of(mapped(site, "node01").topology))


def test_a_port_on_one_lane_is_a_slow_cable_on_the_map(site: DemoSite) -> None:
    set_port(site.hardware("node03"), "mlx5_1", "slow")
    [row] = report_fabric(mapped(site, "node04")).slow
    assert (row.rate, row.fault) == ("1xNDR", "width")


def test_a_node_without_power_is_off_the_map(site: DemoSite) -> None:
    power_off(site.folder, "node02")
    assert {name for name in names(mapped(site, "node01")) if name.startswith("node")} == {
        "node01 mlx5_0",
        "node01 mlx5_1",
    }


def test_a_cable_can_be_pulled_slowed_and_put_right(site: DemoSite) -> None:
    before = cabling_of(mapped(site, "node03").topology)
    assert set_cable(site.fabric("ib-b"), "ib-b-leaf-2", 33, "down") == "ib-b-leaf-2[33] - ib-b-spine-1[3]"
    [change] = compare(before, cabling_of(mapped(site, "node03").topology))
    assert change.kind == "cable gone"
    set_cable(site.fabric("ib-b"), "ib-b-spine-1", 3, "slow")
    assert [row.rate for row in report_fabric(mapped(site, "node03")).slow] == ["4xHDR"]
    set_cable(site.fabric("ib-b"), "ib-b-leaf-2", 33, "up")
    assert not compare(before, cabling_of(mapped(site, "node03").topology))


def test_the_cable_of_a_nodes_adapter_is_told_by_the_nodes_own_port_too(site: DemoSite) -> None:
    set_cable(site.fabric("ib-a"), "ib-a-leaf-1", 1, "down")
    assert site.ports("node01")[0].state == "DOWN"
    set_cable(site.fabric("ib-a"), "node01:mlx5_0", 1, "up")
    assert site.ports("node01")[0].state == "ACTIVE"


def test_leaves_that_no_cable_joins_are_not_seen_from_each_other(site: DemoSite) -> None:
    for port in (33, 34, 35, 36):
        set_cable(site.fabric("ib-b"), "ib-b-leaf-1", port, "down")
    analysis = mapped(site, "node03", "-C", "mlx5_0")
    assert [switch.name for switch in analysis.topology.of_kind("switch")] == ["MF0;ib-b-leaf-1:MQM9700/U1"]


def test_through_a_port_that_is_down_a_node_sees_only_itself(site: DemoSite) -> None:
    set_port(site.hardware("node01"), "mlx5_0", "down")
    report = report_fabric(mapped(site, "node01", "-C", "mlx5_0"))
    assert (report.switches, report.hcas, report.links) == (0, 1, 0)
    assert len(mapped(site, "node01").topology.links) == 38


def test_an_adapter_that_is_not_there_or_devices_that_are_not_there_get_the_tools_own_words(
    site: DemoSite,
) -> None:
    done = site.run("node01", "ibnetdiscover", "-C", "mlx5_7", "-P", "1")
    assert (done.returncode, done.stdout) == (255, "")
    assert "can't open UMAD port (mlx5_7:1)" in done.stderr
    set_machine(site.hardware("node01"), "no-devices")
    assert site.run("node01", "ibnetdiscover").returncode == 255
    assert site.run("node01", "saquery", "SMIR").returncode == 255


def test_each_fabric_has_its_master_and_its_standby(site: DemoSite) -> None:
    first, second = managers(site, "node01"), managers(site, "node03")
    for told in (first, second):
        assert told.answer == "ok"
        assert told.master is not None
        assert (told.master.priority, [one.priority for one in told.standbys]) == (14, [12])
        assert told.problems == []
    assert first.guids.isdisjoint(second.guids)
    assert managers(site, "node02").guids == first.guids
    assert [port.sm_lid for port in site.ports("node01")] == [first.master and first.master.lid] * 2


def test_after_the_masters_death_nothing_answers_until_the_standby_has_taken_over(site: DemoSite) -> None:
    before, path = managers(site, "node01"), site.fabric("ib-a")
    assert stop_manager(path) == ("ib-a-sm1", True)
    assert managers(site, "node01").answer == "unknown"
    assert site.ports("node01")[0].sm_lid == (before.master and before.master.lid)
    assert elect(path) == "ib-a-sm2"
    after = managers(site, "node01")
    assert after.master == before.standbys[0]
    assert after.problems == ["no standby"]
    assert [port.sm_lid for port in site.ports("node02")] == [after.master and after.master.lid] * 2
    start_managers(path)
    assert managers(site, "node01") == before
    assert site.ports("node01")[0].sm_lid == (before.master and before.master.lid)


def test_without_any_manager_nothing_answers_and_a_port_in_init_says_so(site: DemoSite) -> None:
    path = site.fabric("ib-b")
    assert stop_manager(path, "ib-b-sm2") == ("ib-b-sm2", False)
    assert managers(site, "node03").problems == ["no standby"]
    stop_manager(path)
    assert elect(path) is None
    assert managers(site, "node03").answer == "unknown"
    set_port(site.hardware("node03"), "mlx5_0", "init")
    assert managers(site, "node03").answer == "none"


def test_what_is_not_there_gets_a_sentence(site: DemoSite) -> None:
    path = site.fabric("ib-a")
    with pytest.raises(HardwareError, match="has no 'leaf-9'; it has ib-a-sm1:mlx5_0"):
        set_cable(path, "leaf-9", 1, "down")
    with pytest.raises(HardwareError, match="no cable in port 60; it has 1, 2, 3"):
        set_cable(path, "ib-a-leaf-1", 60, "down")
    with pytest.raises(HardwareError, match="its managers are on ib-a-sm1, ib-a-sm2"):
        stop_manager(path, "node01")
    stop_manager(path)
    with pytest.raises(HardwareError, match="stopped already; llmgw sim start-managers ib-a"):
        stop_manager(path, "ib-a-sm1")
    path.write_text("{")
    done = site.run("node01", "ibnetdiscover")
    assert done.returncode == 1
    assert "damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_nodes_may_be_spread_over_leaves(tmp_path: Path) -> None:
    fabric = plan_fabric(
        "roomy", {f"node{at}": ["mlx5_0", "mlx5_1"] for at in range(1, 5)}, {}, slow=False, nodes_a_unit=2
    )
    leaves = {device.guid: device.label for device in fabric.devices if device.kind == "switch"}
    at = {
        fabric.device(cable.b).label: leaves[cable.a]
        for cable in fabric.cables
        if fabric.device(cable.b).node is not None
    }
    assert at["node1:mlx5_0"] == at["node2:mlx5_0"] == "roomy-leaf-1"
    assert at["node3:mlx5_1"] == at["node4:mlx5_1"] == "roomy-leaf-4"


def test_the_commands_reach_the_demo_that_is_meant(site: DemoSite) -> None:
    def sim(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "llmgw", "sim", *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env={**os.environ, "LLMGW_STATE": str(site.folder / "state")},
        )

    assert sim("cable", "ib-a", "ib-a-leaf-3", "33", "down").stdout == (
        "the cable ib-a-leaf-3[33] - ib-a-spine-1[5] is down\n"
    )
    assert len(mapped(site, "node01").topology.links) == 38
    said = sim("stop-manager", "ib-a", "--takes-s", "0").stdout
    assert said == "the master on ib-a-sm1 is dead; a standby notices in 0 s\nib-a-sm2 is master now\n"
    assert managers(site, "node01").problems == ["no standby"]
    assert sim("start-managers", "ib-a").returncode == 0
    assert managers(site, "node01").problems == []
    failed = sim("stop-manager", "ib-z")
    assert failed.returncode == 1
    assert "the demo has no fabric 'ib-z'; it has ib-a, ib-b" in failed.stderr
