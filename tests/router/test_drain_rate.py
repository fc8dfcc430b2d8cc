"""How fast a queue drains, as it is told to clients."""

from __future__ import annotations

import pytest

from llmgw.router.drain_rate import FORGOTTEN_S, DrainRate


def test_nothing_is_known_before_something_has_started() -> None:
    rate = DrainRate()
    rate.begin(0.0)
    assert rate.wait_s(5, 10.0) is None


@pytest.mark.parametrize("per_s", [0.1, 2.0, 300.0])
def test_a_steady_drain_is_told_as_it_is(per_s: float) -> None:
    rate = DrainRate()
    rate.begin(100.0)
    now = 100.0
    for _ in range(int(max(20, per_s * 20))):
        now += 1 / per_s
        rate.started(now)
    assert rate.wait_s(10, now) == pytest.approx(10 / per_s, rel=0.2)


def test_the_time_in_which_nothing_waited_does_not_count() -> None:
    rate = DrainRate()
    now = 0.0
    for _ in range(50):
        rate.begin(now)
        now += 0.5
        rate.started(now)
        rate.end(now)
        now += 20.0
    rate.begin(now)
    assert rate.wait_s(1, now) == pytest.approx(0.5, rel=0.05)


def test_a_drain_that_slows_down_is_noticed() -> None:
    rate = DrainRate()
    rate.begin(0.0)
    for at in range(100):
        rate.started(at / 10)
    assert (rate.wait_s(1, 10.0) or 0) < 0.2
    assert (rate.wait_s(1, 70.0) or 0) > 0.5, "nothing more has started"


def test_another_day_begins_anew() -> None:
    rate = DrainRate()
    rate.begin(0.0)
    rate.started(1.0)
    rate.end(1.0)
    rate.begin(2.0 + FORGOTTEN_S)
    assert rate.wait_s(1, 3.0 + FORGOTTEN_S) is None
