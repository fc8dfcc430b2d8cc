"""Retries are at most a fifth of the requests, and a little for models that were quiet. No clock."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from llmgw.router.retry_budget import RESERVE, RESERVE_PER_S, RETRIED_SHARE, SAVED_MAX, RetryBudget

# A request that wants retries, after so many seconds.
demand = st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 4)), max_size=200)


@settings(max_examples=150, deadline=None)
@given(demand)
def test_whatever_is_asked_for_retries_stay_within_their_share(asked: list[tuple[float, int]]) -> None:
    budget = RetryBudget(0.0)
    now, spent = 0.0, 0
    for requests, (pause_s, wanted) in enumerate(asked, 1):
        now += pause_s
        budget.request()
        for _ in range(wanted):
            allowed = budget.allows(now)
            assert budget.spend(now) == allowed
            spent += allowed
        assert spent <= RETRIED_SHARE * requests + RESERVE + RESERVE_PER_S * now + 1e-6


def test_a_model_that_fails_always_gets_a_fifth_more_requests_in_the_long_run() -> None:
    budget = RetryBudget(0.0)
    spent = 0
    for _ in range(10_000):
        budget.request()
        spent += budget.spend(0.0)
    assert RESERVE + 0.2 * 10_000 - 2 < spent <= RESERVE + 0.2 * 10_000


def test_what_was_saved_lasts_for_an_engine_that_dies_and_is_bounded() -> None:
    budget = RetryBudget(0.0)
    for _ in range(100_000):
        budget.request()
    spent = 0
    while budget.spend(0.0):
        spent += 1
    assert SAVED_MAX - 1 <= spent <= SAVED_MAX


def test_a_quiet_model_has_its_reserve_again_after_a_while() -> None:
    budget = RetryBudget(0.0)
    while budget.spend(0.0):
        pass
    assert not budget.allows(1.0)
    assert budget.allows(2.0)
    later = 2.0 + RESERVE / RESERVE_PER_S + 1000.0
    assert sum(budget.spend(later) for _ in range(100)) == RESERVE
