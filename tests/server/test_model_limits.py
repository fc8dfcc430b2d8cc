"""Limits of the catalog: when one counts as crossed, when that is over, and what an operator is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from llmgw.config.catalog import Catalog, CatalogModel
from llmgw.fleet.model import NodeState, RouterState
from llmgw.messages.agent import EngineFigures
from llmgw.messages.routes import Outcome
from llmgw.server.limits.watch import CALM_SHARE, HELD_S, Change, Key, LimitWatch, Reading
from llmgw.server.seams import Clock
from tests.server.test_catalog_owner import NOW, Plane, Test, model

WithPlane = Callable[[Test], None]
KEY = Key("m", "waiting", "r1")


def looked(watch: LimitWatch, values: Iterable[float | None], at: float, limit: float = 10.0) -> list[Change]:
    """One look a second, at these values."""
    found: list[Change] = []
    for second, value in enumerate(values):
        found += watch.look({KEY: Reading(limit, value)}, at + second)
    return found


def test_a_value_that_stays_above_crosses_once_and_one_that_stays_below_ends_that_once() -> None:
    watch = LimitWatch()
    assert looked(watch, [11] * int(HELD_S), 0.0) == []
    assert looked(watch, [12] * 100, HELD_S) == [Change("m", "waiting", crossed=True)]
    (crossing,) = watch.crossings().values()
    assert (crossing.limit, crossing.value) == (10.0, 12)
    assert looked(watch, [2] * 100, 130.0) == [Change("m", "waiting", crossed=False)]
    assert watch.crossings() == {}


def test_neither_spikes_nor_a_value_about_its_limit_are_news() -> None:
    watch = LimitWatch()
    assert looked(watch, ([50] * 20 + [1]) * 10, 0.0) == [], "no spike lasts"
    assert looked(watch, [11] * 40, 300.0) == [Change("m", "waiting", crossed=True)]
    assert looked(watch, [11, 10, 9.5] * 40, 340.0) == [], "it is not calm between nine tenths and the limit"
    assert looked(watch, ([CALM_SHARE * 10] * 20 + [10]) * 10, 500.0) == []


def test_what_is_not_known_neither_crosses_nor_ends_anything() -> None:
    watch = LimitWatch()
    assert looked(watch, ([11] * 20 + [None]) * 5, 0.0) == [], "nobody knows what was between"
    looked(watch, [11] * 40, 200.0)
    assert looked(watch, [None] * 500, 240.0) == []
    assert list(watch.crossings()) == [KEY]


def test_a_server_that_stood_still_has_not_seen_what_was_between() -> None:
    watch = LimitWatch()
    for at in (0.0, 40.0, 80.0):
        assert watch.look({KEY: Reading(10.0, 11.0)}, at) == []


def test_another_limit_is_judged_from_when_it_rules_and_none_ends_it() -> None:
    watch = LimitWatch()
    looked(watch, [11] * 40, 0.0)
    assert looked(watch, [11] * 25, 40.0, limit=20.0) == []
    assert looked(watch, [11] * 10, 65.0, limit=20.0) == [Change("m", "waiting", crossed=False)]
    looked(watch, [30] * 40, 75.0, limit=20.0)
    assert watch.look({}, 115.0) == [Change("m", "waiting", crossed=False)]


def test_a_model_is_told_of_once_however_many_of_its_replicas_come_and_go() -> None:
    watch = LimitWatch()
    other = Key("m", "waiting", "r2")
    found: list[Change] = []
    for at in range(200):
        one, two = (11.0 if at < 60 else 0.0), (11.0 if 20 < at < 120 else 0.0)
        found += watch.look({KEY: Reading(10.0, one), other: Reading(10.0, two)}, float(at))
    assert found == [Change("m", "waiting", crossed=True), Change("m", "waiting", crossed=False)]


# Through a hub, its store and the admin API.


class Engines:
    """What the five replicas' engines say, second by second."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.now = 1010.0
        plane.hub.clock = Clock(monotonic=lambda: self.now, wall=lambda: NOW)
        self.shards = [replica.shards[0] for _, replica in sorted(plane.hub.fleet.replicas.items())]

    def say(self, seconds: int, *figures: EngineFigures | None, fresh: bool = True) -> None:
        """For so long; the last is what all others say."""
        for _ in range(seconds):
            self.now += 1.0
            if fresh:
                for index, shard in enumerate(self.shards):
                    shard.figures = figures[min(index, len(figures) - 1)]
                    shard.figures_at = self.now
            self.plane.hub.look_at_limits()

    async def findings(self) -> dict[str, Any]:
        return {finding["check"]: finding for finding in (await self.plane.get("server"))["problems"]}

    async def history(self) -> list[str]:
        return [entry["event"] for entry in reversed(await self.plane.get("history?kind=model&model=a"))]


BUSY, CALM = EngineFigures(waiting=72, cache_used=0.97), EngineFigures(waiting=0, cache_used=0.1)


async def limited(plane: Plane, **limits: object) -> Engines:
    answer = await plane.apply({**model(), "limits": limits})
    assert answer.status_code == 200, answer.text
    return Engines(plane)


def test_a_crossed_limit_is_one_finding_with_replicas_value_limit_and_what_to_do(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        engines = await limited(plane, waiting=50)
        engines.say(20, BUSY, CALM)
        assert await engines.findings() == {}
        engines.say(20, BUSY, CALM)
        (finding,) = (await engines.findings()).values()
        first = sorted(plane.hub.fleet.replicas)[0]
        assert (finding["check"], finding["where"], finding["severity"]) == ("limit-waiting", "a", "warning")
        assert f"limits.waiting of 50, in 1 of its 5 ready replicas: {first} (72)" in finding["what"]
        assert "the other 4 stay below it" in finding["remedy"]
        assert f"llmgw ctl logs {first}" in finding["remedy"]
        engines.say(40, BUSY)
        (finding,) = (await engines.findings()).values()
        assert "in 5 of its 5 ready replicas" in finding["what"]
        assert finding["remedy"].startswith("`llmgw ctl scale a N`")
        engines.say(40, CALM)
        assert await engines.findings() == {}
        assert await engines.history() == ["limit crossed", "limit kept again"]

    with_plane(body)


def test_stale_figures_leave_a_limit_as_it_is(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        engines = await limited(plane, kv_cache="90%")
        engines.say(1, BUSY)
        engines.say(100, fresh=False)
        assert await engines.findings() == {}, "one reading, however old, crosses nothing"
        engines.say(40, BUSY)
        assert "0.9" not in (await engines.findings())["limit-kv-cache"]["what"]
        assert "more than its limits.kv_cache of 90 %" in (await engines.findings())["limit-kv-cache"]["what"]
        engines.say(1, CALM)
        engines.say(100, fresh=False)
        assert list(await engines.findings()) == ["limit-kv-cache"]
        assert await engines.history() == ["limit crossed"]

    with_plane(body)


def test_an_engine_that_is_silent_is_one_finding_and_not_a_limits_too(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        engines = await limited(plane, waiting=50)
        engines.say(40, BUSY, CALM)
        assert list(await engines.findings()) == ["limit-waiting"]
        shard = engines.shards[0]
        shard.figures_problem = "did not come within 2 s"
        engines.say(60, None, CALM)
        (finding,) = (await engines.findings()).values()
        assert finding["check"] == "engine-metrics-silent"
        assert "its metrics did not come within 2 s, several times in a row" in finding["what"]
        assert finding["where"] == shard.spec.replica_id
        assert f"llmgw ctl restart {shard.spec.replica_id}" in finding["remedy"]
        shard.figures_problem = None
        engines.say(1, BUSY, CALM)
        assert list(await engines.findings()) == ["limit-waiting"], "it never ended"
        assert await engines.history() == ["limit crossed"]
        shard.figures_problem = "did not come within 2 s"
        plane.hub.fleet.nodes[shard.node_id].state = NodeState.UNREACHABLE
        assert "engine-metrics-silent" not in await engines.findings(), "that is said of the node"

    with_plane(body)


def test_the_time_to_the_first_byte_is_judged_by_twenty_requests_or_more(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        engines = await limited(plane, ttft_p95="2s")
        rates, fleet = plane.hub.rates, plane.hub.fleet
        fleet.routers["r"] = RouterState()

        def serve(seconds: int, first_byte_s: float, each: int) -> None:
            for _ in range(seconds):
                rates.take([Outcome("a", None, 200, first_byte_s=first_byte_s)] * each, ["a"], engines.now)
                engines.say(1, CALM)

        serve(5, 9.0, 3)
        engines.say(55, CALM)
        assert await engines.findings() == {}, "fifteen requests, all of them slow"
        serve(60, 3.4, 2)
        finding = (await engines.findings())["limit-ttft"]
        assert "its limits.ttft_p95 is 2s" in finding["what"]
        assert "llmgw ctl scale a N" in finding["remedy"]
        fleet.routers["r"].in_flight = {sorted(fleet.replicas)[0]: 1}
        engines.say(200, CALM)
        assert "limit-ttft" in await engines.findings(), "somebody waits, and nobody knows how long it takes"
        fleet.routers["r"].in_flight = {}
        engines.say(31, CALM)
        assert await engines.findings() == {}, "nobody asks, so nobody waits"
        assert await engines.history() == ["limit crossed", "limit kept again"]

    with_plane(body)


def test_a_finding_that_is_about_to_end_does_not_call_calm_values_a_limit_crossed(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        engines = await limited(plane, waiting=50, ttft_p95="2s")
        plane.hub.fleet.routers["r"] = RouterState()
        for _ in range(40):
            plane.hub.rates.take([Outcome("a", None, 200, first_byte_s=3.0)] * 2, ["a"], engines.now)
            engines.say(1, BUSY)
        assert not any("not above" in finding["what"] for finding in (await engines.findings()).values())
        engines.say(20, CALM)
        waiting = (await engines.findings())["limit-waiting"]["what"]
        assert "It is not above that now, and this ends after 30 s of at most 45" in waiting
        engines.say(25, BUSY)
        engines.say(20, CALM)
        first_byte = (await engines.findings())["limit-ttft"]["what"]
        assert first_byte.startswith("nobody waits for a any more; its limits.ttft_p95 is 2s. It is not above")

    with_plane(body)


def test_limits_are_changed_without_a_restart_of_anything(with_plane: WithPlane) -> None:
    async def body(plane: Plane) -> None:
        changed = {**model(), "limits": {"waiting": 5, "kv_cache": 0.9, "ttft_p95": "2s"}}
        plan = (await plane.post("catalog/plan", models=[changed])).json()
        assert (plan["starts"], plan["stops"], plan["rolls"]) == (0, 0, 0)
        assert [(entry["change"], entry["keys"], entry["profiles"]) for entry in plan["models"]] == [
            ("changed", ["limits"], [])
        ]

    with_plane(body)


@pytest.mark.parametrize("written", ["90%", "90 %", 0.9, "0.9"])
def test_a_share_is_written_in_percent_or_as_a_fraction(written: object) -> None:
    read = CatalogModel.model_validate({**model(), "limits": {"kv_cache": written}})
    assert read.limits.kv_cache == pytest.approx(0.9)
    assert CatalogModel.model_validate(msgspec.json.decode(msgspec.json.encode(read.model_dump()))) == read


def test_limits_are_no_part_of_the_form_in_which_replicas_run() -> None:
    plain, limited = (
        Catalog.model_validate({"models": [{**model(), **more}]}).models[0].profile_hashes
        for more in ({}, {"limits": {"waiting": 3}})
    )
    assert plain == limited
