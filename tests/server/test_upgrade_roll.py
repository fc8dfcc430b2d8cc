"""The roll of an upgrade: node by node, and no further than the first that is not back as it was."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from llmgw.messages.upgrade import LastUpgrade, UpgradeTold
from llmgw.messages.upgrade_views import NodeUpgrade, UpgradeView
from llmgw.server.upgrades.roll import ASKS_MAX, STALL_LIMIT_S, STEADY_S, Roll, Sight

SHA = "ab" * 32
OLD = Sight(
    there=True, state="it is ready", session="s1", instance="i1", version="1.0.0", can_upgrade=True, engines={}
)


class World:
    """Nodes n1, n2, … as the roll sees them, and a clock."""

    def __init__(self, *names: str, **settings: object) -> None:
        nodes = [NodeUpgrade(node=name) for name in names]
        view = UpgradeView(
            id="u1", name="f", version="1.1.0", sha256=SHA, size_bytes=10, signature="s", nodes=nodes, **settings
        )  # type: ignore[arg-type]
        self.roll = Roll(view)
        self.sights = dict.fromkeys(names, OLD)
        self.now = 100.0
        self.asked: list[str] = []

    def look(self, seconds: float = 0.5) -> None:
        self.now += seconds
        self.asked += self.roll.look(self.sights, self.now)

    def see(self, node: str, **changes: object) -> None:
        self.sights[node] = replace(self.sights[node], **changes)  # type: ignore[arg-type]
        self.look()

    def tell(self, node: str, stage: str, sentence: str = "", done_bytes: int | None = None) -> None:
        self.see(node, told=UpgradeTold(request_id="u1", stage=stage, sentence=sentence, done_bytes=done_bytes))

    def back(self, node: str, **changes: object) -> None:
        """The node's agent registers as the new version."""
        last = LastUpgrade(upgrade_id="u1", sha256=SHA, version="1.1.0", outcome="trial")
        new = {
            "there": True,
            "session": "s2",
            "instance": "i2",
            "version": "1.1.0",
            "last_upgrade": last,
            "told": None,
        }
        self.see(node, **(new | changes))
        self.stay()

    def stay(self) -> None:
        """Nothing happens for as long as a node must stay as it is to count as back."""
        self.look(STEADY_S)

    def states(self) -> list[str]:
        return [node.state for node in self.roll.view.nodes]

    def reason(self, at: int = 0) -> str:
        return self.roll.view.nodes[at].reason


def test_one_node_after_the_other_is_asked_and_the_next_only_when_the_one_before_is_back() -> None:
    world = World("n1", "n2")
    world.look()
    assert world.asked == ["n1"]
    world.tell("n1", "downloading", done_bytes=5)
    assert world.roll.view.nodes[0].done_bytes == 5
    world.tell("n1", "switching")
    assert world.states() == ["restarting", "waiting"]
    world.see("n1", there=False, session=None)
    assert world.asked == ["n1"]
    world.back("n1")
    assert world.states() == ["upgraded", "preparing"]
    assert world.asked == ["n1", "n2"]
    world.tell("n2", "switching")
    world.back("n2")
    assert world.roll.view.state == "done"
    assert [node.was for node in world.roll.view.nodes] == ["1.0.0", "1.0.0"]


def test_a_node_is_back_only_with_every_engine_that_was_ready_and_in_the_same_process() -> None:
    world = World("n1")
    world.see("n1", engines={"a.0": ("ready", 11), "b.0": ("other", 12)})
    world.tell("n1", "switching")
    world.back("n1", engines={"a.0": ("other", 11)})
    assert world.states() == ["restarting"]
    world.see("n1", engines={"a.0": ("ready", 11)})
    assert world.states() == ["restarting"]
    world.stay()
    assert world.states() == ["upgraded"]


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        ({"a.0": ("ready", 99)}, r"a\.0 has another process \(11, now 99\)"),
        ({"a.0": ("lost", None)}, r"lost a\.0 on the way"),
        ({}, r"lost a\.0 on the way"),
    ],
)
def test_the_roll_stops_at_a_node_that_came_back_without_an_engine(
    engines: dict[str, tuple[str, int | None]], words: str
) -> None:
    world = World("n1", "n2")
    world.see("n1", engines={"a.0": ("ready", 11)})
    world.tell("n1", "switching")
    world.back("n1", engines=engines)
    assert world.states() == ["failed", "waiting"]
    assert world.roll.view.state == "stopped"
    assert re.search(words, world.roll.view.reason)


def test_a_new_program_that_registers_and_ends_again_and_again_is_not_followed_by_the_next_node() -> None:
    world = World("n1", "n2", back_within_s=60.0)
    world.look()
    world.tell("n1", "switching")
    world.back("n1", there=False)
    for life in range(2, 200):
        world.see("n1", there=True, instance=f"i{life}", session=f"s{life}")
        if life % 3 == 0:
            world.see("n1", there=False, session=None)
        if world.states() != ["restarting", "waiting"]:
            break
    assert world.states() == ["failed", "waiting"]
    assert "n1 is llmgw 1.1.0, and after 60 s" in world.reason()


def test_an_engine_that_was_meant_to_end_meanwhile_is_not_missed() -> None:
    world = World("n1")
    world.see("n1", engines={"a.0": ("ready", 11)})
    world.tell("n1", "switching")
    world.back("n1", engines={"a.0": ("stopped", None)})
    assert world.states() == ["upgraded"]


def test_a_node_that_is_not_back_in_time_stops_the_roll() -> None:
    world = World("n1", "n2", back_within_s=60.0)
    world.look()
    world.tell("n1", "switching")
    world.see("n1", there=False, session=None, state="n1 is unreachable")
    world.look(58.0)
    assert world.states() == ["restarting", "waiting"]
    world.look(3.0)
    assert world.states() == ["failed", "waiting"]
    assert "n1 was not back 60 s after" in world.roll.view.reason
    world.look(500.0)
    assert world.asked == ["n1"]


def test_a_node_that_went_back_stops_the_roll_and_says_why() -> None:
    world = World("n1", "n2")
    world.look()
    world.tell("n1", "switching")
    last = LastUpgrade(upgrade_id="u1", sha256=SHA, version="1.1.0", outcome="back", reason="it never registered")
    world.back("n1", version="1.0.0", last_upgrade=last)
    assert world.states() == ["back", "waiting"]
    assert world.roll.view.reason == "n1 went back to llmgw 1.0.0 because it never registered"


def test_that_a_node_went_back_from_an_earlier_upgrade_to_the_same_file_is_nothing_of_this_one() -> None:
    world = World("n1")
    last = LastUpgrade(upgrade_id="u0", sha256=SHA, version="1.1.0", outcome="back", reason="then")
    world.see("n1", last_upgrade=last)
    assert world.asked == ["n1"]
    world.tell("n1", "switching")
    world.back("n1")
    assert world.states() == ["upgraded"]


def test_an_agent_that_refuses_stops_the_roll_and_nothing_has_changed_there() -> None:
    world = World("n1", "n2")
    world.look()
    world.tell("n1", "refused", "no key is here")
    assert world.states() == ["refused", "waiting"]
    assert world.roll.view.state == "stopped"
    assert world.roll.view.reason == "n1: no key is here"


def test_an_agent_that_could_not_switch_after_all_stops_the_roll() -> None:
    world = World("n1")
    world.look()
    world.tell("n1", "switching")
    world.tell("n1", "refused", "the disk is full")
    assert world.states() == ["refused"]


def test_an_agent_without_the_feature_is_never_asked_and_the_others_are() -> None:
    world = World("n1", "n2")
    world.see("n1", can_upgrade=False)
    assert world.states() == ["refused", "preparing"]
    assert world.asked == ["n2"]
    assert "cannot replace its own program" in world.reason()


def test_nodes_that_are_not_there_are_skipped_and_named() -> None:
    world = World("n1", "n2", "n3")
    del world.sights["n1"]
    world.see("n2", there=False, state="n2 is lost, no power")
    assert world.states() == ["skipped", "skipped", "preparing"]
    assert world.reason(0) == "it was removed"
    assert "n2 is lost, no power" in world.reason(1)


def test_a_node_that_is_lost_before_it_had_switched_is_skipped() -> None:
    world = World("n1", "n2")
    world.look()
    world.see("n1", there=False, state="n1 is unreachable")
    assert world.states() == ["preparing", "waiting"]
    world.see("n1", lost=True, state="n1 is lost")
    assert world.states() == ["skipped", "preparing"]


def test_an_agent_that_says_nothing_while_it_prepares_stops_the_roll() -> None:
    world = World("n1", "n2")
    world.look()
    for _ in range(5):
        world.look(STALL_LIMIT_S / 2)
        world.tell("n1", "installing")  # the same words are news, too
    assert world.states() == ["preparing", "waiting"]
    world.look(STALL_LIMIT_S + 1)
    assert world.states() == ["failed", "waiting"]
    assert "installing last" in world.reason()


def test_an_agent_that_registers_again_before_it_switched_is_asked_again_and_not_for_ever() -> None:
    world = World("n1")
    world.look()
    world.see("n1", session="s2")
    assert world.asked == ["n1", "n1"]
    for number in range(3, 20):
        world.see("n1", session=f"s{number}")
    assert world.states() == ["failed"]
    assert len(world.asked) == ASKS_MAX


def test_a_node_that_is_the_release_already_is_left_alone() -> None:
    world = World("n1", "n2")
    last = LastUpgrade(upgrade_id="u0", sha256=SHA, version="1.1.0", outcome="settled")
    world.see("n1", version="1.1.0", last_upgrade=last)
    world.tell("n2", "already")
    assert world.states() == ["unchanged", "unchanged"]
    assert world.asked == ["n2"]


def test_an_agent_whose_last_words_were_lost_counts_as_switched_when_it_is_back() -> None:
    world = World("n1")
    world.look()
    world.back("n1")
    assert world.states() == ["upgraded"]


def test_an_agent_that_started_anew_as_the_old_version_stops_the_roll() -> None:
    world = World("n1")
    world.look()
    world.tell("n1", "switching")
    world.see("n1", session="s2")  # the same process, once more before its end
    assert world.states() == ["restarting"]
    world.see("n1", session="s3", instance="i2")
    assert world.states() == ["failed"]
    assert "came back as llmgw 1.0.0" in world.reason()


def test_a_cancelled_roll_lets_the_node_that_has_begun_finish_and_begins_with_no_other() -> None:
    world = World("n1", "n2")
    world.look()
    world.roll.cancel("ops")
    world.tell("n1", "switching")
    world.back("n1")
    assert world.states() == ["upgraded", "waiting"]
    assert world.roll.view.state == "cancelled"
    assert world.roll.view.reason == "cancelled by ops"
    assert world.asked == ["n1"]


@pytest.mark.parametrize("told", [False, True])
def test_a_roll_goes_on_where_an_earlier_server_left_it(told: bool) -> None:
    world = World("n1", "n2")
    world.see("n1", engines={"a.0": ("ready", 11)})
    if told:
        world.tell("n1", "switching")
    world.roll = Roll(world.roll.view)
    if not told:
        world.see("n1", session="other", told=None)
        assert world.asked == ["n1", "n1"]  # it is a session of the new server that counts
    world.back("n1", engines={"a.0": ("ready", 11)})
    assert world.states() == ["upgraded", "preparing"]
