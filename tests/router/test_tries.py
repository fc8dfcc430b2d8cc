"""Invariant 8 and the budget, for any engines: no endpoint twice, none after two died. No sockets, no clock."""

from __future__ import annotations

import math
import random

import hypothesis.strategies as st
from hypothesis import given, settings

from llmgw.messages.routes import ModelRoute, RouteEndpoint
from llmgw.router.choice import Pool
from llmgw.router.endpoint import Endpoint
from llmgw.router.limits import ATTEMPTS_MAX, DEATHS_MAX
from llmgw.router.retry_budget import RESERVE, RETRIED_SHARE, RetryBudget
from llmgw.router.table import Model
from llmgw.router.tries import Tries


def model(count: int) -> Model:
    endpoints = [
        Endpoint(RouteEndpoint(id=f"e{n}", host="10.0.0.1", port=8000), idle_limit_s=4.0, now=-math.inf)
        for n in range(count)
    ]
    return Model(ModelRoute(name="m"), Pool(endpoints), RetryBudget(0.0))


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 8),
    st.lists(st.lists(st.sampled_from(["died", "refused"]), min_size=1, max_size=8), max_size=30),
    st.randoms(use_true_random=False),
)
def test_no_endpoint_is_tried_twice_and_none_after_two_died(
    count: int, requests: list[list[str]], generator: random.Random
) -> None:
    here = model(count)
    retries = 0
    for sent, fates in enumerate(requests, 1):
        tries = Tries(here, generator.random, None)
        tried: list[Endpoint] = []
        deaths = 0
        for fate in fates:
            endpoint = tries.another(0.0)
            if endpoint is None:
                spent = retries + tries.retries > RETRIED_SHARE * sent + RESERVE - 1 - 1e-6
                assert deaths >= DEATHS_MAX or len(tried) in (ATTEMPTS_MAX, count) or (tries.refused and spent)
                break
            assert endpoint not in tried
            assert deaths < DEATHS_MAX
            tries.begin(endpoint, 0.0)
            tried.append(endpoint)
            if fate == "died":
                deaths += 1
                tries.died()
            endpoint.failed(0.0, False)
        assert len(tried) <= ATTEMPTS_MAX
        assert tries.retries == max(0, len(tried) - 1)
        retries += tries.retries
        assert retries <= RETRIED_SHARE * sent + RESERVE + 1e-6


def test_an_answer_that_would_be_the_second_death_ends_the_tries() -> None:
    tries = Tries(model(4), random.random, None)
    first = tries.another(0.0)
    assert first is not None
    tries.begin(first, 0.0)
    assert tries.another(0.0, deaths=1) is not None
    tries.died()
    assert tries.another(0.0) is not None
    assert tries.another(0.0, deaths=1) is None


def test_asking_the_same_endpoint_again_is_taken_from_the_budget() -> None:
    tries = Tries(model(2), random.random, None)
    assert sum(tries.again(0.0) for _ in range(100)) == RESERVE
    assert tries.refused
