"""Whom to ask next: one port of each target, another node after a failure, each in its turn, on a made clock."""

from __future__ import annotations

from llmgw.server.fabrics.schedule import AGAIN_S, ATTEMPTS_MAX, SOON_S, Schedule
from llmgw.server.fabrics.usable_ports import PortAt

PORTS = [PortAt(f"n{node}", f"mlx5_{rail}", 1) for node in (1, 2, 3) for rail in (0, 1)]


def test_what_is_new_is_asked_within_seconds_and_again_after_the_interval() -> None:
    schedule: Schedule[str] = Schedule(60.0, lambda: 0.5)
    assert schedule.due(100.0, {"a": PORTS}) == []
    ((key, _),) = schedule.due(100.0 + SOON_S, {"a": PORTS})
    assert schedule.due(500.0, {"a": PORTS}) == []  # one question at a time
    schedule.answered(key, 500.0, well=True)
    assert schedule.due(559.0, {"a": PORTS}) == []
    assert len(schedule.due(560.0, {"a": PORTS})) == 1


def test_turns_are_jittered() -> None:
    for number, after in ((0.0, 54.0), (1.0, 66.0)):
        schedule: Schedule[str] = Schedule(60.0, lambda number=number: number)  # type: ignore[misc]
        schedule.due(0.0, {"a": PORTS})
        schedule.due(SOON_S, {"a": PORTS})
        schedule.answered("a", 10.0, well=True)
        assert schedule.due(10.0 + after - 0.1, {"a": PORTS}) == []
        assert len(schedule.due(10.0 + after, {"a": PORTS})) == 1


def test_after_a_failure_another_node_is_asked_and_after_the_third_it_waits() -> None:
    schedule: Schedule[str] = Schedule(60.0, lambda: 0.0)
    now, nodes = 0.0, []
    for _ in range(ATTEMPTS_MAX):
        ((_, port),) = schedule.due(now, {"a": PORTS})
        nodes.append(port.node)
        schedule.answered("a", now, well=False)
        now += AGAIN_S
    assert sorted(nodes) == ["n1", "n2", "n3"]
    assert schedule.due(now, {"a": PORTS}) == []
    assert len(schedule.due(now + 60, {"a": PORTS})) == 1


def test_a_node_that_failed_lately_is_asked_last() -> None:
    schedule: Schedule[str] = Schedule(60.0, lambda: 0.0)
    ((_, first),) = schedule.due(0.0, {"a": PORTS})
    schedule.answered("a", 0.0, well=False)
    ((_, second),) = schedule.due(5.0, {"a": PORTS})
    schedule.answered("a", 5.0, well=True)
    ((_, third),) = schedule.due(70.0, {"a": PORTS})
    assert first.node == "n1"
    assert second.node == third.node == "n2"


def test_one_port_that_fails_is_tried_again_at_its_next_turn_and_no_port_is_no_question() -> None:
    schedule: Schedule[str] = Schedule(60.0, lambda: 0.0)
    only = PORTS[:1]
    assert len(schedule.due(0.0, {"a": only, "b": []})) == 1
    schedule.answered("a", 0.0, well=False)
    assert schedule.due(6.0, {"a": only}) == []
    assert len(schedule.due(66.0, {"a": only})) == 1


def test_a_target_that_is_gone_is_forgotten_and_its_answer_too() -> None:
    schedule: Schedule[str] = Schedule(60.0, lambda: 0.0)
    schedule.due(0.0, {"a": PORTS})
    schedule.due(1.0, {})
    schedule.answered("a", 1.0, well=True)
    schedule.due(2.0, {})
    schedule.answered("a", 2.0, well=True)
    assert schedule.due(3.0, {}) == []
