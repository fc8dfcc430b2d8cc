"""What follows for fabrics from what managers and maps say: identity, failover, problems. On a made clock."""

from __future__ import annotations

import dataclasses
import re

import msgspec

from llmgw.fabric.managers import read_managers
from llmgw.messages.agent import Port
from llmgw.server.fabrics.reading import map_of
from llmgw.server.fabrics.usable_ports import PortAt
from tests.fabric.generate import Fabric, fat_tree
from tests.fabric.smir import MASTER, smir
from tests.server.fabric_world import (
    M1,
    M2,
    M3,
    NO_MANAGER,
    SILENT,
    Watched,
    managers,
    packed,
    ports_of,
    usable,
)


def tree() -> Fabric:
    return fat_tree(nodes=4, rails=2, leaves=2, spines=2)


def with_lid(it: Watched, lid: int, *nodes: str) -> None:
    it.ports = [
        dataclasses.replace(one, port=msgspec.structs.replace(one.port, sm_lid=lid))
        if not nodes or one.at.node in nodes
        else one
        for one in it.ports
    ]


def test_identity_is_kept_through_failovers_until_no_first_manager_is_left() -> None:
    made = tree()
    it = Watched(ports_of(made))
    it.say(managers(M1, M2))
    it.map(made.text())
    first = it.only().id
    it.say(SILENT)
    assert (it.only().answer, it.only().silent_since, it.only().managers_at) == ("unknown", it.now, it.now - 61)
    assert it.only().managers is not None
    it.say(managers(M2, M3))
    with_lid(it, 7)
    it.say(managers(M3))
    with_lid(it, 9)
    it.say(managers(M3))
    assert it.only().id == first == f"0x{M1:016x}"
    assert [change.kind for change in it.changes if change.kind == "master changed"] == ["master changed"] * 2
    assert not [found for found in it.book.findings(it.now) if "the name" in found.what]
    for _ in range(3):
        it.map(made.text())
        it.say(managers(M3))
    assert it.only().id == first


def test_during_a_failover_the_managers_are_unknown_and_never_none() -> None:
    it = Watched(ports_of(tree()))
    it.say(managers(M1, M2))
    it.say(NO_MANAGER)
    assert it.only().answer == "unknown"
    assert it.only().managers is not None
    finding = next(one for one in it.book.findings(it.now) if one.check == "fabric-managers-silent")
    assert "its managers are unknown, last seen 60 s ago: 0x0c42a10300009901 (priority 14)" in finding.what
    it.say(NO_MANAGER)
    assert it.only().answer == "none"
    assert "it has no subnet manager, last seen" in " ".join(it.only().problems)


def test_an_answer_without_a_master_changes_none() -> None:
    it = Watched(ports_of(tree()))
    it.say(managers(M1, M2))
    it.say(smir((M2, 7, 12, 1)))
    assert it.only().managers is not None
    assert it.only().managers.master is not None
    assert it.only().managers.master.guid == f"0x{M1:016x}"
    assert it.only().silent_since is not None


def test_what_is_wrong_with_managers_is_said_and_ends() -> None:
    it = Watched(ports_of(tree()))
    it.say(managers(M1))
    assert it.checks() == ["fabric-no-standby"]
    it.say(managers(M2, M1))
    assert it.checks() == ["fabric-master-changed"]
    it.say(managers(M2, M1), later_s=3601)
    assert it.checks() == []


def test_ports_that_disagree_are_a_problem_after_the_time_of_a_failover() -> None:
    it = Watched(ports_of(tree()))
    it.say(managers(M1, M2))
    with_lid(it, 7, "n2")
    it.say(managers(M1, M2))
    it.look(80)
    assert "fabric-masters-disagree" not in it.checks()
    it.look(20)
    assert "fabric-masters-disagree" in it.checks()
    assert "LID 7: n2 mlx5_0:1, n2 mlx5_1:1" in " ".join(it.only().problems)
    with_lid(it, 1)
    it.look()
    assert "fabric-masters-disagree" not in it.checks()


def test_two_masters_that_both_answer_do_not_take_turns_in_history() -> None:
    made = tree()
    it = Watched(ports_of(made))
    it.say(managers(M1, M2))
    it.map(made.text())
    with_lid(it, 7, "n2")
    for _ in range(5):
        it.look(60)
        for master in it.book.masters():
            guid = M2 if master.sm_lid == 7 else M1
            text = smir((guid, master.sm_lid or 0, 14, MASTER), (M1 + M2 - guid, 99, 1, 2))
            it.changes += it.book.managers_said(master, read_managers(text), it.now)
    assert [change for change in it.changes if change.kind == "master changed"] == []


def test_one_name_over_two_fabrics_is_found_by_the_map_and_both_are_asked() -> None:
    made = tree()
    other = fat_tree(nodes=1, rails=2, leaves=2, spines=1)
    stranger = usable("n9", other.adapter("n9 mlx5_0"))
    stranger = dataclasses.replace(
        stranger, port=msgspec.structs.replace(stranger.port, node_guid="1", port_guid="1")
    )
    it = Watched([*ports_of(made), stranger])
    it.say(managers(M1))
    it.map(made.text())
    assert {master.physical for master in it.book.masters()} == {f"0x{M1:016x}", None}
    for master in list(it.book.masters()):
        text = managers(M3) if master.physical is None else managers(M1)
        it.book.managers_said(master, read_managers(text), it.now)
    it.look()
    assert sorted(fabric.id for fabric in it.book.named("ib-a")) == [f"0x{M1:016x}", f"0x{M3:016x}"]
    assert "fabric-identity" in it.checks()
    assert it.book.of_port("ib-a", stranger.port) == f"0x{M3:016x}"


def test_two_names_over_one_fabric_are_a_problem() -> None:
    made = tree()
    ports = ports_of(made)
    it = Watched([dataclasses.replace(one, name="ib-b") if one.at.node == "n4" else one for one in ports])
    it.say(managers(M1))
    it.say(managers(M1), name="ib-b")
    assert it.only().names == ("ib-a", "ib-b")
    assert "the names ib-a and ib-b stand for one physical fabric" in " ".join(it.only().problems)


def test_a_fabric_whose_managers_cannot_be_asked_is_mapped_and_named_by_its_switches() -> None:
    made = tree()
    it = Watched(ports_of(made))
    assert it.book.map_targets() == {}
    for master in it.book.masters():
        it.book.managers_not_asked(master, "n1 mlx5_0:1: saquery is not there; install infiniband-diags")
    assert it.checks() == ["fabric-unasked"]
    (fabric,) = it.map(made.text())
    assert fabric.id == f"0x{min(switch.guid for switch in made.switches):016x}"
    it.say(managers(M1))
    assert it.only().id == fabric.id


def test_ports_without_a_manager_are_told_by_fabric() -> None:
    it = Watched(ports_of(tree()))
    it.say(managers(M1, M2))
    port = Port(adapter="mlx5_0", port=1, state="INIT", link_layer="InfiniBand")
    it.book.look(it.ports, [(PortAt("n8", "mlx5_0", 1), "ib-a", port)], it.now)
    assert it.checks() == ["fabric-ports-unmanaged"]
    assert it.only().problems[0].startswith("n8 mlx5_0:1 is up, but no subnet manager")


def test_a_fabric_that_only_old_agents_are_on_says_whose() -> None:
    it = Watched([dataclasses.replace(one, askable=False) for one in ports_of(tree())])
    assert it.checks() == ["fabric-unasked"]
    assert "the agents of n1, n2, n3, n4 cannot run its tools" in it.book.findings(it.now)[0].what


def test_a_cable_that_goes_is_a_change_and_a_difference_only_from_what_was_accepted() -> None:
    made = tree()
    it = Watched(ports_of(made))
    it.say(managers(M1, M2))
    it.map(made.text())
    assert it.changes == []
    fabric = it.only()
    assert fabric.cabling is not None
    it.book.accept(fabric, fabric.cabling, it.now, "ops")
    leaf = made.switches[0]
    at, (spine, far, _) = next((at, cable) for at, cable in leaf.cables.items() if cable[0] in made.switches)
    del leaf.cables[at], spine.cables[far]
    it.map(made.text())
    assert [(change.area, change.kind) for change in it.changes] == [("cabling", "cable gone")]
    assert [change.kind for change in fabric.differences] == ["cable gone"]
    assert it.checks() == ["fabric-cabling-differs"]
    it.map(made.text())
    assert len(it.changes) == 1
    assert len(fabric.differences) == 1


def test_fabrics_that_come_and_go_do_not_pile_up() -> None:
    it = Watched(ports_of(tree()))
    for number in range(200):
        it.say(smir((0xA000 + number, 1, 1, MASTER)))
    assert len(it.book.known) < 40
    assert it.book.forgotten


def test_a_map_that_is_not_whole_is_said_to_be_so_until_there_is_one_that_is() -> None:
    made = tree()
    it = Watched(ports_of(made))
    it.say(managers(M1, M2))
    it.map(made.text())
    assert it.checks() == []
    it.map(made.text()[:-150])
    assert it.checks() == ["fabric-map-not-whole"]
    what = next(one.what for one in it.book.findings(it.now))
    assert "cables are told by one end only" in what
    it.map(made.text())
    assert it.checks() == []


def test_a_map_that_cannot_be_what_the_port_sees_is_no_map_of_its_fabric() -> None:
    made = tree()
    foreign = re.sub("b8cef60|c42a10", lambda found: found[0].replace("0", "7"), made.text())
    ports = ports_of(made)
    it = Watched(ports)
    it.say(managers(M1, M2))
    mine, other = map_of(packed(made.text()), (), {}, {}), map_of(packed(foreign), (), {}, {})
    asked = [int(ports[0].port.port_guid or "", 16)]
    elsewhere = [next(iter(other.guids))]
    for _ in range(2):  # before its first map, and after it
        (target,) = it.book.map_targets()
        assert it.book.is_strangers(target, asked, other.switches, other.guids)
        assert not it.book.is_strangers(target, asked, mine.switches, mine.guids)
        # A port that was cabled to another fabric is on that one's map; some ports are on no map at all.
        assert not it.book.is_strangers(target, elsewhere, other.switches, other.guids)
        it.map(made.text())
    assert not it.book.is_strangers(target, [], mine.switches, mine.guids)
