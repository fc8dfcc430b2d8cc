"""Which endpoint is chosen: the less loaded of two, by capacity, with room. No sockets, no clock."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import accumulate

import hypothesis.strategies as st
from hypothesis import given, settings

from llmgw.messages.routes import RouteEndpoint
from llmgw.router.breaker import FAILURES_TO_OPEN, OPEN_S
from llmgw.router.choice import Pool, draw_two, share_capacity
from llmgw.router.endpoint import SLOW_START_S, Endpoint


def endpoint(id: str, now: float = -math.inf, **fields: object) -> Endpoint:
    route = RouteEndpoint(id=id, host="10.0.0.1", port=8000, **fields)  # type: ignore[arg-type]
    return Endpoint(route, idle_limit_s=4.0, now=now)


def pool(*concurrency: int | None) -> Pool:
    these = [endpoint(f"e{index}", concurrency=limit) for index, limit in enumerate(concurrency)]
    share_capacity(these)
    return Pool(these)


def break_open(endpoint: Endpoint, at: float = 0.0) -> None:
    for _ in range(FAILURES_TO_OPEN):
        endpoint.failed(at, False)


def test_of_two_endpoints_the_less_loaded_one_is_chosen() -> None:
    these = pool(None, None)
    a, b = these.endpoints
    a.begin(0.0)
    assert all(these.choose(0.0, [], random.random) is b for _ in range(20))
    assert these.choose(0.0, [b], random.random) is a
    assert these.choose(0.0, [b, a], random.random) is None


def test_ties_are_spread_evenly() -> None:
    these = pool(*[None] * 4)
    generator = random.Random(1)
    counts = Counter(these.choose(0.0, [], generator.random) for _ in range(4000))
    assert all(900 < counts[endpoint] < 1100 for endpoint in these.endpoints)


def test_the_most_loaded_of_all_is_never_chosen_and_the_least_loaded_one_not_always() -> None:
    these = pool(*[None] * 5)
    for index, each in enumerate(these.endpoints):
        each.outstanding = index
    generator = random.Random(1)
    counts = Counter(these.choose(0.0, [], generator.random) for _ in range(1000))
    assert these.endpoints[4] not in counts
    assert 300 < counts[these.endpoints[0]] < 500, "two of five draw it in two of five cases"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=12), st.integers(0, 2**32).map(random.Random))
def test_requests_that_stay_are_spread_by_capacity(capacities: list[int], generator: random.Random) -> None:
    these = pool(*capacities)
    count = sum(capacities) * 3 // 4
    for _ in range(count):
        chosen = these.choose(0.0, [], generator.random)
        assert chosen is not None
        chosen.begin(0.0)
    for each in these.endpoints:
        assert each.outstanding <= each.concurrency
    fill = [each.outstanding / each.capacity for each in these.endpoints if each.capacity >= 20]
    assert not fill or max(fill) - min(fill) < 0.35


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_every_place_is_filled_and_none_twice(limits: list[int], generator: random.Random) -> None:
    these = pool(*limits)
    for _ in range(sum(limits)):
        chosen = these.choose(0.0, [], generator.random)
        assert chosen is not None
        chosen.begin(0.0)
    assert these.choose(0.0, [], generator.random) is None
    assert [each.outstanding for each in these.endpoints] == limits
    these.endpoints[0].end(False)
    assert these.choose(0.0, [], generator.random) is these.endpoints[0]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0.01, 1000.0), min_size=2, max_size=9),
    st.floats(0.0, 1.0, exclude_max=True),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_two_draws_never_give_the_same_endpoint(capacities: list[float], one: float, two: float) -> None:
    these = [endpoint(str(index)) for index in range(len(capacities))]
    first, second = draw_two(these, list(accumulate(capacities)), iter([one, two]).__next__)
    assert first is not second


def test_draws_are_as_likely_as_capacities() -> None:
    these = pool(1, 1, 2, 4).endpoints
    generator = random.Random(3)
    cumulative = list(accumulate(each.capacity for each in these))
    firsts: Counter[Endpoint] = Counter()
    pairs: Counter[Endpoint] = Counter()
    for _ in range(16_000):
        first, second = draw_two(these, cumulative, generator.random)
        firsts[first] += 1
        pairs[second] += first is these[3]
    assert [round(firsts[each] / 2000, 1) for each in these] == [1.0, 1.0, 2.0, 4.0]
    assert [round(pairs[each] / 2000) for each in these[:3]] == [1, 1, 2], "drawn from what the first one left"


def test_an_endpoint_without_a_limit_counts_as_the_mean_of_the_others() -> None:
    assert [each.capacity for each in pool(10, None, 30).endpoints] == [10.0, 20.0, 30.0]
    assert [each.capacity for each in pool(None, None).endpoints] == [1.0, 1.0]


def test_a_new_endpoint_gets_its_share_slowly() -> None:
    old, new = endpoint("old"), endpoint("new", now=100.0)
    these = Pool([old, new])
    shares = []
    for now in (100.0, 100.0 + SLOW_START_S / 2, 100.0 + SLOW_START_S):
        old.outstanding = new.outstanding = 0
        for _ in range(220):
            chosen = these.choose(now, [], random.random)
            assert chosen is not None
            chosen.begin(now)
        shares.append(new.outstanding)
    assert shares[0] == 20, "a tenth of what the other one has"
    assert shares[1] in (73, 74)
    assert shares[2] == 110


def test_a_fast_failure_counts_as_load_and_fades() -> None:
    these = pool(None, None)
    failing, busy = these.endpoints
    busy.outstanding = 5
    failing.failed(0.0, False)
    assert these.choose(0.1, [], random.random) is busy
    assert these.choose(10.0, [], random.random) is failing


def test_an_endpoint_whose_breaker_is_open_is_left_out_and_probed_once() -> None:
    these = pool(None, None)
    bad, good = these.endpoints
    break_open(bad)
    good.outstanding = 100
    assert these.choose(OPEN_S - 0.1, [], random.random) is good
    assert these.choose(OPEN_S + 30, [], random.random) is bad
    assert bad.begin(OPEN_S + 30)
    assert these.choose(OPEN_S + 30, [], random.random) is good, "one probe at a time"


def test_an_endpoint_that_answers_again_starts_slowly() -> None:
    (bad,) = pool(None).endpoints
    break_open(bad)
    assert bad.succeeded(50.0)
    assert bad.weight(50.0) < 0.2
    assert bad.weight(50.0 + SLOW_START_S) == 1.0


def test_a_model_whose_breakers_are_all_open_tries_the_least_bad_one() -> None:
    these = pool(None, None)
    first, second = these.endpoints
    break_open(first, at=5.0)
    break_open(second, at=4.0)
    assert these.choose(5.5, [], random.random) is second
    assert these.choose(5.5, [second], random.random) is first


def test_a_broken_endpoint_is_no_way_out_while_the_others_are_full() -> None:
    these = pool(1, 1)
    bad, full = these.endpoints
    break_open(bad)
    full.begin(0.0)
    assert these.choose(0.0, [], random.random) is None
    break_open(full)
    assert these.choose(0.0, [], random.random) is bad, "the other one has no room"


def test_a_client_error_never_counts_and_closes_a_breaker_that_is_open() -> None:
    (one,) = pool(None).endpoints
    one.failed(0.0, False)
    one.failed(0.0, False)
    assert not one.answered(0.0)
    assert one.failed(0.0, False), "a 4xx is no success either"
    assert one.answered(0.0)
    assert one.usable(0.0)
