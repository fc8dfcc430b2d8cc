"""What routers share of a key's limits: together they give what one would, wherever the requests come."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.messages.routes import KeyDemand, KeyRoute, KeyShare
from llmgw.router.token_bucket import MINUTE_S, TokenBucket
from llmgw.server.key_shares import QUIET_ROUNDS, KeyShares
from llmgw.server.shares import EVEN_PART

TELEMETRY_S = 0.5
NAMES = ("r0", "r1", "r2")


def key(**limits: int) -> KeyRoute:
    return KeyRoute(id="k", hash=b"", **limits)  # type: ignore[arg-type]


class Routers:
    """Routers of which each holds its bucket of one key, and the control process that divides it."""

    def __init__(self, limit: int, names: tuple[str, ...] = NAMES) -> None:
        self.now = 0.0
        self.limit = limit
        self.shares = KeyShares()
        self.shares.set_limits([key(requests_per_minute=limit)])
        self.buckets = {name: TokenBucket(limit, limit / len(names), 0.0) for name in names}
        self.asked = dict.fromkeys(names, 0)
        self.given = 0

    def ask(self, name: str, times: int) -> int:
        count = 0
        for _ in range(times):
            self.asked[name] += 1
            if self.buckets[name].level(self.now) >= self.buckets[name].least:
                self.buckets[name].take(1, self.now)
                count += 1
        self.given += count
        return count

    def tell(self) -> None:
        for name, bucket in self.buckets.items():
            demand = {}
            if self.asked[name] or bucket.level(self.now) < bucket.part:
                demand["k"] = KeyDemand(requests=self.asked[name], requests_left=bucket.level(self.now))
            self.asked[name] = 0
            self.shares.told(name, demand)

    def divide(self) -> None:
        for name, parts in self.shares.divide(self.buckets).items():
            share = parts.get("k")
            bucket = self.buckets[name]
            part = share.requests_per_minute if share is not None else None
            moved = share.requests_moved if share is not None else None
            bucket.set_part(part or self.limit / len(self.buckets), moved, self.now)

    def most(self) -> float:
        """What one bucket would have given by now, and a request for each part that may be below one."""
        return self.limit + self.limit * self.now / MINUTE_S + len(self.buckets)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 300),
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 80), st.integers(1, 30), st.integers(1, 3)), max_size=25
    ),
)
def test_wherever_requests_come_all_together_give_no_more_than_one_would(
    limit: int, phases: list[tuple[str, int, int, int]]
) -> None:
    routers = Routers(limit)
    for name, times, ticks, divisions in phases:
        for _ in range(ticks):
            routers.ask(name, times)
            assert routers.given <= routers.most()
            routers.tell()
            for _ in range(divisions):  # also when it is divided again before anything new is told
                routers.divide()
            routers.now += TELEMETRY_S


def test_what_is_asked_while_parts_are_on_their_way_is_owed() -> None:
    routers = Routers(90)
    routers.ask("r0", 200)
    routers.tell()
    division = routers.shares.divide(routers.buckets)
    late = routers.ask("r1", 30) + routers.ask("r2", 30)
    assert late == 60, "they do not know yet that theirs is r0's"
    for name, parts in division.items():
        share = parts["k"]
        assert share.requests_per_minute is not None
        routers.buckets[name].set_part(share.requests_per_minute, share.requests_moved, 0.0)
    over = routers.ask("r0", 200)
    assert 30 < over <= 60
    for _ in range(240):
        routers.now += TELEMETRY_S
        routers.tell()
        routers.divide()
        for name in NAMES:
            routers.ask(name, 5)
    assert routers.given <= routers.most(), "after two minutes of asking as much as before"


def test_connections_that_all_land_on_one_router_get_almost_the_whole_limit() -> None:
    for names, least in ((("r0", "r1"), 7 / 8), (NAMES, 3 / 4), (tuple(f"r{n}" for n in range(16)), 3 / 4)):
        routers = Routers(600, names)
        for _ in range(4):
            routers.ask("r0", 600)
            routers.tell()
            routers.divide()
            routers.now += TELEMETRY_S
        assert routers.given >= 600 * least, "within two seconds, of what was there at first"
        before, since = routers.given, routers.now
        for _ in range(120):
            routers.ask("r0", 20)
            routers.tell()
            routers.divide()
            routers.now += TELEMETRY_S
        assert routers.given - before >= 600 * (routers.now - since) / MINUTE_S * least * 0.97


def test_a_limit_of_one_request_a_minute_gives_one_wherever_it_comes_first() -> None:
    for name in NAMES:
        routers = Routers(1)
        assert routers.ask(name, 1) == 1


def test_when_all_is_quiet_each_has_an_even_part_again_and_nothing_is_told() -> None:
    shares = KeyShares()
    shares.set_limits([key(requests_per_minute=100, concurrency=10)])
    shares.told("r0", {"k": KeyDemand(requests=50, running=3, requests_left=1.0)})
    shares.told("r1", {})
    parts = shares.divide(["r0", "r1"])
    assert parts["r0"]["k"].concurrency == 9
    assert parts["r1"]["k"].concurrency == 1
    assert parts["r0"]["k"].requests_moved == -parts["r1"]["k"].requests_moved > 0
    for _ in range(100):
        for name in ("r0", "r1"):
            shares.told(name, {})
    assert shares.divide(["r0", "r1"]) == {"r0": {}, "r1": {}}


def test_a_part_of_what_may_run_at_a_time_grows_only_into_what_the_others_have_ended() -> None:
    shares = KeyShares()
    shares.set_limits([key(concurrency=16)])
    shares.told("r0", {"k": KeyDemand(requests=0, running=8)})
    shares.told("r1", {"k": KeyDemand(requests=200, running=8)})
    parts = shares.divide(["r0", "r1"])
    assert parts["r1"]["k"].concurrency == 8, "the others still run"
    shares.told("r0", {"k": KeyDemand(running=5)})
    shares.told("r1", {"k": KeyDemand(requests=200, running=8)})
    parts = shares.divide(["r0", "r1"])
    assert parts["r1"]["k"].concurrency == 11
    shares.told("r0", {})
    assert (shares.divide(["r0", "r1"])["r1"]["k"].concurrency or 0) >= 13


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20)), min_size=1, max_size=5),
)
def test_parts_and_what_runs_are_never_more_than_may_run_at_a_time(
    limit: int, told: list[tuple[int, int]]
) -> None:
    shares = KeyShares()
    shares.set_limits([key(concurrency=limit)])
    names = [f"r{n}" for n in range(len(told))]
    for name, (requests, running) in zip(names, told, strict=True):
        shares.told(name, {"k": KeyDemand(requests=requests, running=running)})
    parts = {name: each["k"].concurrency or 0 for name, each in shares.divide(names).items() if each}
    ran = {name: running for name, (_, running) in zip(names, told, strict=True)}
    if parts:
        assert min(parts.values()) >= 1
        # Where the even part of each is below one, those that have nothing to do may begin one beyond the limit.
        idle = {name for name, each in zip(names, told, strict=True) if each == (0, 0)}
        if limit >= EVEN_PART * len(names) or len(idle) == len(names):
            idle = set()
        assert {parts[name] for name in idle} <= {1}
        together = sum(max(part, ran[name]) for name, part in parts.items() if name not in idle)
        # No part is below one, and what runs already is not ended.
        assert together <= max(limit, sum(max(1, count) for name, count in ran.items() if name not in idle))


@pytest.mark.parametrize("limit", [2, 3, 8])
def test_a_client_whose_connections_are_all_with_one_of_many_routers_may_have_a_small_limit_whole(
    limit: int,
) -> None:
    shares = KeyShares()
    shares.set_limits([key(concurrency=limit)])
    names = [f"r{n}" for n in range(8)]
    for name in names:
        shares.told(name, {})
    shares.told("r3", {"k": KeyDemand(requests=5, running=1)})
    parts = {name: each["k"].concurrency for name, each in shares.divide(names).items()}
    assert parts == {name: limit if name == "r3" else 1 for name in names}
    # As soon as another has something to do it is one of those that share the limit.
    shares.told("r3", {"k": KeyDemand(requests=5, running=limit - 1)})
    shares.told("r5", {"k": KeyDemand(requests=5, running=1)})
    parts = {name: each["k"].concurrency or 0 for name, each in shares.divide(names).items()}
    assert max(parts["r3"], limit - 1) + parts["r5"] == limit, "what runs is not ended"


def test_a_router_that_greets_again_counts_anew_and_one_that_is_gone_leaves_its_part() -> None:
    shares = KeyShares()
    shares.set_limits([key(requests_per_minute=100)])
    shares.told("r0", {"k": KeyDemand(requests=50, requests_left=0.0)})
    shares.told("r1", {})
    first = shares.divide(["r0", "r1"])["r0"]["k"]
    assert shares.connected("r0")["k"] == KeyShare(requests_per_minute=first.requests_per_minute)
    shares.forget("r1")
    shares.told("r0", {"k": KeyDemand(requests=50, requests_left=0.0)})
    alone = shares.divide(["r0"])["r0"]["k"]
    assert (alone.requests_per_minute, alone.requests_moved) == (100.0, 0.0)


def test_an_operators_new_limit_is_divided_anew() -> None:
    shares = KeyShares()
    shares.set_limits([key(requests_per_minute=100)])
    for name in ("r0", "r1"):
        shares.told(name, {"k": KeyDemand(requests=5, requests_left=40.0)})
    shares.divide(["r0", "r1"])
    shares.set_limits([key(requests_per_minute=1000)])
    parts = shares.divide(["r0", "r1"])
    assert [each["k"].requests_per_minute for each in parts.values()] == [500.0, 500.0]
    shares.set_limits([])
    assert shares.divide(["r0", "r1"]) == {"r0": {}, "r1": {}}


def test_a_key_that_nobody_uses_now_is_divided_seldom_and_one_that_is_used_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    divided: Counter[str] = Counter()
    divide_key = KeyShares._divide_key

    def noted(shares: KeyShares, key_id: str, told: Any) -> dict[str, KeyShare]:
        divided[key_id] += 1
        return divide_key(shares, key_id, told)

    monkeypatch.setattr(KeyShares, "_divide_key", noted)
    names = [f"k{n}" for n in range(200)]
    shares = KeyShares()
    shares.set_limits([KeyRoute(id=name, hash=b"", requests_per_minute=60) for name in names])

    def tell(router: str, asked: str | None = None) -> None:
        """All of them are filling up still, after what was asked of one of the routers."""
        demand = {name: KeyDemand(requests_left=10.0) for name in names}
        if asked is not None:
            demand[asked] = KeyDemand(requests=5, requests_left=10.0)
        shares.told(router, demand)

    for name in names:
        tell("r0", name)
    first = shares.divide(NAMES)
    assert set(divided.values()) == {1}
    assert len(divided) == 200
    divided.clear()
    for _ in range(QUIET_ROUNDS):
        before = divided.total()
        for router in NAMES:
            tell(router)
        parts = shares.divide(NAMES)
        assert all(parts[router].keys() == first[router].keys() for router in NAMES), "each keeps its parts"
        assert divided.total() - before < 60
    assert set(divided.values()) == {1}
    assert len(divided) == 200, "all have had their turn"
    divided.clear()
    tell("r2", "k7")
    assert shares.divide(NAMES)["r2"]["k7"] != parts["r2"]["k7"]
    assert divided["k7"] == 1
    divided.clear()
    shares.divide([*NAMES, "r3"])
    assert len(divided) == 200, "a router that is new has a part of each"
