"""What real OpenSM and the real tools say, read by this project: elections, failovers, maps, pulled cables."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.fabric.changes import cabling_of, compare
from llmgw.fabric.identity import Observation, settle_identities
from llmgw.fabric.records import parse_guid
from llmgw.fabric.report import Analysis, analyse, report_fabric
from llmgw.hardware.ports import read_ports
from llmgw.sim.fabric.plan import Manager
from tests.lab.real_fabric import ask, ask_managers, wait_for
from tests.lab.site import NODES, Site

pytestmark = pytest.mark.lab


def real_map(site: Site, node: str) -> Analysis:
    code, text, complaints = ask(site.hardware(node) / "ibnetdiscover", "-C", "mlx5_0", "-P", "1")
    assert code == 0, complaints
    nodes = next(nodes for nodes in NODES.values() if node in nodes)
    inventories = {one: read_ports(site.hardware(one) / "ib") for one in nodes}
    return analyse(text, inventories=inventories)


def port_guid(manager: Manager) -> int:
    """ibsim numbers ports on from their node."""
    return int(manager.guid, 16) + 1


def test_each_fabric_elects_its_own_master_and_keeps_a_standby(site: Site) -> None:
    for name, nodes in NODES.items():
        master, standby = (port_guid(manager) for manager in site.plans[name].managers)
        for node in nodes:
            told = ask_managers(site.hardware(node), "mlx5_1")
            assert told.answer == "ok"
            assert told.master is not None
            assert (parse_guid(told.master.guid or ""), told.master.priority) == (master, 14)
            assert [parse_guid(one.guid or "") for one in told.standbys] == [standby]


def test_the_map_of_the_real_tool_is_the_one_that_the_simulated_tool_prints(site: Site) -> None:
    for name, nodes in NODES.items():
        real, planned = real_map(site, nodes[0]), analyse(site.planned_text(name))
        assert not compare(cabling_of(planned.topology), cabling_of(real.topology))
        assert real.tiers == planned.tiers
        assert len(real.slow) == len(planned.slow) == (1 if name == "ib-a" else 0)
        report = report_fabric(real)
        assert report.unread_lines == 0
        assert all(rail.aligned for rail in report.rails)
        owned = {(owner.node, owner.adapter) for owner in real.owners.values() if owner.known_by == "guid"}
        assert owned == {(node, adapter) for node in nodes for adapter in ("mlx5_0", "mlx5_1")}


def test_a_cable_that_was_pulled_is_the_only_change_and_none_when_it_is_back(site: Site) -> None:
    before = cabling_of(real_map(site, "node01").topology)
    leaf = next(device for device in site.plans["ib-a"].devices if device.label == "ib-a-leaf-2")
    site.fabrics["ib-a"].unlink(f"S-{leaf.guid}", 33)
    wait_for(lambda: len(real_map(site, "node01").topology.links) < len(before.cables), "the cable is gone")
    changes = compare(before, cabling_of(real_map(site, "node01").topology))
    assert len(changes) == 1
    assert "ib-a-leaf-2" in str(changes[0])
    assert "33" in str(changes[0])
    site.fabrics["ib-a"].relink(f"S-{leaf.guid}", 33)
    wait_for(lambda: not compare(before, cabling_of(real_map(site, "node01").topology)), "the cable is back")


def test_after_the_masters_death_nobody_answers_and_then_the_standby_alone_under_the_old_identity(
    own_site: Site,
) -> None:
    before = ask_managers(own_site.hardware("node01"))
    known = settle_identities([], [Observation("ib-a", before.guids)])
    own_site.fabrics["ib-a"].stop_manager(own_site.managers("ib-a")[0])
    silent = wait_for(
        lambda: (told := ask_managers(own_site.hardware("node02"))).answer != "ok" and told, "silence"
    )
    assert (silent.answer, silent.master) == ("unknown", None)
    after = wait_for(
        lambda: (told := ask_managers(own_site.hardware("node02"))).answer == "ok" and told, "a new master"
    )
    assert after.master is not None
    assert parse_guid(after.master.guid or "") == port_guid(own_site.plans["ib-a"].managers[1])
    assert after.problems == ["no standby"]
    settled = settle_identities(known.known, [Observation("ib-a", after.guids)])
    assert settled.fabric_of_name == known.fabric_of_name
    assert ask_managers(own_site.hardware("node05")).problems == []


def test_nothing_of_the_simulator_lies_where_the_tests_run(site: Site) -> None:
    ask_managers(site.hardware("node01"))
    assert list(Path.cwd().glob("sys-*")) == []
