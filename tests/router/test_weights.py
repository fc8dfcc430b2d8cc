"""Weights: how requests are divided between endpoints that could all take more. No sockets, no clock."""

from __future__ import annotations

import math
import random
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from llmgw.messages.routes import ModelRoute, RouteEndpoint, RouteTable, TableVersion
from llmgw.router.affinity import SHARE_MAX, Ring
from llmgw.router.breaker import FAILURES_TO_OPEN
from llmgw.router.choice import SHARES_S, Pool, share_capacity
from llmgw.router.endpoint import SLOW_START_S, Endpoint
from llmgw.router.table import RoutingTable

DRAWS = 10_000
SIGMAS = 4.5  # beyond that once in 150,000 draws of a seed


def pool(*weights: float, now: float = -math.inf, **fields: object) -> Pool:
    these = [
        Endpoint(
            RouteEndpoint(id=f"e{index}", host="10.0.0.1", port=8000, weight=weight, **fields),  # type: ignore[arg-type]
            idle_limit_s=4.0,
            now=now,
        )
        for index, weight in enumerate(weights)
    ]
    share_capacity(these)
    return Pool(these)


def counted(pool: Pool, draws: int = DRAWS, now: float = 0.0, running: int = 0, seed: int = 7) -> list[int]:
    """How often each endpoint is chosen when so many requests run at a time, the oldest ending first."""
    generator = random.Random(seed)
    counts: Counter[Endpoint] = Counter()
    open_ones: list[Endpoint] = []
    for _ in range(draws):
        chosen = pool.choose(now, [], generator.random)
        assert chosen is not None
        chosen.begin(now)
        counts[chosen] += 1
        open_ones.append(chosen)
        if len(open_ones) > running:
            open_ones.pop(0).end(False)
    for each in open_ones:
        each.end(False)
    return [counts[each] for each in pool.endpoints]


@pytest.mark.parametrize("running", [0, 5, 100])
@pytest.mark.parametrize("weights", [(1, 0.1), (1, 1, 1, 0.1), (1, 2, 4), (0.5, 0.5, 3, 1, 1)])
def test_requests_are_divided_by_weight_whatever_runs(weights: tuple[float, ...], running: int) -> None:
    counts = counted(pool(*weights), running=running)
    for weight in set(weights):
        share = weight * weights.count(weight) / sum(weights)
        got = sum(count for count, each in zip(counts, weights, strict=True) if each == weight)
        assert abs(got - DRAWS * share) < SIGMAS * math.sqrt(DRAWS * share * (1 - share)), (weight, counts)


def test_equal_weights_are_as_none() -> None:
    assert counted(pool(0.1, 0.1, 0.1), running=9) == counted(pool(1, 1, 1), running=9)


def test_weight_0_takes_nothing_while_another_can() -> None:
    these = pool(1, 0, 0, concurrency=2)
    generator = random.Random(1)
    for _ in range(2):
        chosen = these.choose(0.0, [], generator.random)
        assert chosen is these.endpoints[0]
        chosen.begin(0.0)
    assert these.choose(0.0, [], generator.random) in these.endpoints[1:], "the first is full"
    these.endpoints[0].end(False)
    assert these.choose(0.0, [], generator.random) is these.endpoints[0]
    assert these.choose(0.0, [these.endpoints[0]], generator.random) in these.endpoints[1:], "the first was tried"
    for _ in range(FAILURES_TO_OPEN):
        these.endpoints[0].failed(0.0, False)
    assert these.choose(0.0, [], generator.random) in these.endpoints[1:], "the first has failed"


def test_where_all_have_weight_0_all_serve() -> None:
    assert min(counted(pool(0, 0, 0))) > DRAWS / 4


def test_a_new_one_and_one_that_fails_get_less_than_their_weight() -> None:
    these = pool(1, 0.5)
    canary = these.endpoints[1]
    canary.slow_since = 0.0
    fresh = counted(these, now=SLOW_START_S / 5)[1]
    assert 0.5 * 0.2 / 1.1 < fresh / DRAWS * 1.3 < 0.5 * 0.2 / 1.1 * 1.7
    settled = counted(these, now=SLOW_START_S)[1]
    assert settled > 3 * fresh
    canary.failed(SLOW_START_S + SHARES_S, False)
    assert counted(these, now=SLOW_START_S + SHARES_S)[1] < settled / 5


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0, 0.1, 1, 3]), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=3),
    st.randoms(use_true_random=False),
)
def test_whatever_the_weights_one_that_can_take_a_request_is_found(
    weights: list[float], broken: list[int], generator: random.Random
) -> None:
    these = pool(*weights, concurrency=1)
    for index in broken:
        for _ in range(FAILURES_TO_OPEN):
            these.endpoints[index % len(weights)].failed(0.0, False)
    sound = [each for each in these.endpoints if not each.breaker.open_until]
    for _ in sound:
        chosen = these.choose(0.0, [], generator.random)
        assert chosen in sound
        better = [each for each in sound if each.route.weight and each.usable(0.0)]
        assert chosen.route.weight or not better
        chosen.begin(0.0)


def test_conversations_are_divided_by_weight_too_and_none_beyond_its_share() -> None:
    these = pool(1, 1, 1, 0.1).endpoints
    ring = Ring(these)
    generator = random.Random(5)
    homes = Counter(ring.find(generator.getrandbits(64), 0.0, []) for _ in range(DRAWS))
    assert 0.6 < homes[these[3]] / (DRAWS * 0.1 / 3.1) < 1.4
    for _ in range(310):
        chosen = ring.find(generator.getrandbits(64), 0.0, [])
        assert chosen is not None
        chosen.begin(0.0)
    assert these[3].outstanding <= math.ceil(SHARE_MAX * 310 * 0.1 / 3.1)


def test_weight_0_is_no_conversations_home() -> None:
    table = RoutingTable(idle_limit_s=4.0)
    endpoints = [
        RouteEndpoint(id=f"e{index}", host="10.0.0.1", port=8000, weight=weight)
        for index, weight in enumerate([1, 0, 1])
    ]
    route = ModelRoute(name="m", endpoints=endpoints, prefix_affinity=True)
    table.apply(RouteTable(version=TableVersion("a", 1), models=[route]), 0.0)
    pool, generator = table.models["m"].pool, random.Random(5)
    homes = {pool.choose(0.0, [], generator.random, generator.getrandbits(64)) for _ in range(200)}
    assert {home.id for home in homes if home is not None} == {"e0", "e2"}


def test_a_second_try_goes_to_one_that_has_not_failed_lately() -> None:
    these = pool(1, 1, 1, 1)
    first, failing, *_ = these.endpoints
    failing.failed(0.0, False)
    generator = random.Random(3)
    for ring in (None, Ring(these.endpoints)):
        these.ring = ring
        for _ in range(200):
            point = generator.getrandbits(64)
            assert these.choose(0.0, [first], generator.random, point) in these.endpoints[2:]
    these.ring = None
    assert these.choose(0.0, [first, *these.endpoints[2:]], generator.random) is failing, "it is all that is left"
    assert these.choose(60.0, [first, *these.endpoints[2:]], generator.random) is failing
    others = {these.choose(60.0, [first], generator.random) for _ in range(100)}
    assert others == set(these.endpoints[1:]), "what failed long ago is forgotten"
