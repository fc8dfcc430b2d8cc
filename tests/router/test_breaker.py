"""The breaker of an endpoint: what opens it, how it probes, what closes it. No clock."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from llmgw.router.breaker import FAILURES_TO_OPEN, OPEN_S, OPEN_S_MAX, Breaker


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    assert [breaker.failed(at, False) for _ in range(FAILURES_TO_OPEN)] == [False, False, True]
    return breaker


def test_it_opens_probes_once_and_closes() -> None:
    breaker = opened()
    assert breaker.state(OPEN_S - 0.1) == "open"
    assert not breaker.available(OPEN_S - 0.1)
    assert not breaker.begin(OPEN_S - 0.1)
    assert breaker.state(OPEN_S) == "half_open"
    assert breaker.begin(OPEN_S)
    assert not breaker.available(OPEN_S)
    assert not breaker.begin(OPEN_S), "one probe at a time"
    assert breaker.succeeded()
    assert breaker.state(OPEN_S) == "closed"
    assert breaker.available(OPEN_S)


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker()
    for _ in range(20):
        assert not breaker.failed(0.0, False)
        assert not breaker.failed(0.0, False)
        assert not breaker.succeeded()
    assert breaker.available(0.0)


def test_a_failed_probe_opens_it_for_twice_as_long_up_to_a_limit() -> None:
    breaker = opened()
    now, pause_s = OPEN_S, OPEN_S
    for _ in range(8):
        assert breaker.begin(now)
        assert breaker.failed(now, True)
        pause_s = min(pause_s * 2, OPEN_S_MAX)
        assert not breaker.available(now + pause_s - 0.01)
        assert breaker.available(now + pause_s)
        now += pause_s
    assert breaker.begin(now)
    breaker.succeeded()
    assert [breaker.failed(now, False) for _ in range(FAILURES_TO_OPEN)][-1]
    assert breaker.available(now + OPEN_S), "what was long ago does not count"


def test_failures_that_were_on_their_way_when_it_opened_do_not_prolong_it() -> None:
    breaker = opened()
    for late in range(50):
        assert not breaker.failed(late / 10, False)
    assert breaker.available(OPEN_S)


def test_a_probe_whose_client_left_is_followed_by_another() -> None:
    breaker = opened()
    assert breaker.begin(OPEN_S)
    breaker.give_up()
    assert breaker.begin(OPEN_S)


class AnyOrder(RuleBasedStateMachine):
    """Requests begin and end in any order and at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.now = 0.0
        self.running: list[bool] = []
        """Whether each is a probe that has not told anything yet."""
        self.in_a_row = 0

    @rule(by=st.floats(0.0, 40.0))
    def time_passes(self, by: float) -> None:
        self.now += by

    @rule()
    def begin(self) -> None:
        self.running.append(self.breaker.begin(self.now))

    @rule(data=st.data(), how=st.sampled_from(["failed", "failed", "failed", "succeeded", "left"]))
    def end(self, data: st.DataObject, how: str) -> None:
        if not self.running:
            return
        probe = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        before = self.breaker.state(self.now)
        if how == "failed":
            self.in_a_row += 1
            opens = self.breaker.failed(self.now, probe)
            assert opens == (probe if before != "closed" else self.in_a_row >= FAILURES_TO_OPEN)
        elif how == "succeeded":
            self.in_a_row = 0
            assert self.breaker.succeeded() == (before != "closed")
            self.running = [False] * len(self.running)
        elif probe:
            self.breaker.give_up()

    @invariant()
    def at_most_one_probe_runs_and_it_never_stays_open(self) -> None:
        breaker = self.breaker
        assert sum(self.running) <= 1
        assert breaker.probing == any(self.running)
        assert breaker.available(self.now) or breaker.probing or breaker.open_until - self.now <= OPEN_S_MAX
        if self.in_a_row < FAILURES_TO_OPEN:
            assert breaker.available(self.now)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
