"""The last requests and their rates, from what routers tell."""

from __future__ import annotations

import pytest

from llmgw.messages.routes import Outcome
from llmgw.metrics.family import OTHER
from llmgw.server.recent.durations import Counts, count, percentile_s
from llmgw.server.recent.rates import STEP_S, STEPS_KEPT, RecentRates
from llmgw.server.recent.requests import RecentRequests


def outcome(model: str = "m", status: int = 200, **facts: object) -> Outcome:
    return Outcome(model, "m-1", status, total_s=2.0, first_byte_s=0.5, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("duration_s", [0.0006, 0.013, 0.5, 7.0, 600.0, 3600.0])
def test_a_percentile_is_within_seven_percent(duration_s: float) -> None:
    counts: Counts = {}
    for _ in range(3):
        count(counts, duration_s)
    for share in (0.01, 0.5, 1.0):
        assert percentile_s(counts, share) == pytest.approx(duration_s, rel=0.07)


def test_a_percentile_is_what_that_share_did_not_exceed() -> None:
    counts: Counts = {}
    assert percentile_s(counts, 0.5) is None
    for duration_s in [0.1] * 94 + [5.0] * 6:
        count(counts, duration_s)
    assert percentile_s(counts, 0.5) == pytest.approx(0.1, rel=0.07)
    assert percentile_s(counts, 0.95) == pytest.approx(5.0, rel=0.07)
    for extreme in (0.0, 1e9):
        count(counts, extreme)
    assert percentile_s(counts, 1.0) is not None


def test_rates_are_of_the_last_minute_alone() -> None:
    rates = RecentRates(began=1000.0)
    rates.take([outcome(prompt_tokens=10, completion_tokens=20)] * 30, ["m"], 1100.0)
    rates.take([outcome(status=502)] * 10, ["m"], 1155.0)
    now = rates.rates("m", 1155.0, in_flight=3, queued=2)
    assert now.window_s == 65.0
    assert now.requests_per_s == pytest.approx(40 / 65)
    assert now.errors_per_s == pytest.approx(10 / 65)
    assert now.tokens_per_s == pytest.approx(600 / 65)
    assert now.first_byte_p95_s == pytest.approx(0.5, rel=0.07)
    assert (now.in_flight, now.queued) == (3, 2)
    later = rates.rates("m", 1300.0)
    assert later.requests_per_s == 0
    assert later.first_byte_p50_s is None


def test_a_server_that_has_just_started_divides_by_the_time_that_it_has() -> None:
    rates = RecentRates(began=1000.0)
    rates.take([outcome()] * 10, ["m"], 1004.0)
    assert rates.rates("m", 1005.0).requests_per_s == 2.0


def test_a_series_has_every_step_and_an_hour_at_most() -> None:
    rates = RecentRates(began=1000.0)
    rates.take([outcome()], ["m"], 1005.0)
    rates.take([outcome(status=500)] * 2, ["m"], 1041.0)
    series = rates.series("m", 1042.0, wall=5042.0)
    assert [(point.requests, point.errors) for point in series.points] == [(1, 0), (0, 0), (0, 0), (0, 0), (2, 2)]
    assert [point.at for point in series.points] == [5000.0, 5010.0, 5020.0, 5030.0, 5040.0]
    for step in range(2 * STEPS_KEPT):
        rates.take([outcome()], ["m"], 1050.0 + step * STEP_S)
    assert len(rates.series("m", 1050.0 + 2 * STEPS_KEPT * STEP_S, 0.0).points) == STEPS_KEPT


def test_models_that_nobody_knows_are_counted_together_and_gone_ones_forgotten() -> None:
    rates = RecentRates(began=0.0)
    rates.take([outcome(f"made-up-{number}") for number in range(1000)], ["m"], 5.0)
    assert rates.rates(OTHER, 6.0).requests_per_s == pytest.approx(1000 / 6.0)
    assert rates.rates("made-up-1", 6.0).requests_per_s == 0
    rates.take([outcome("m")], ["m"], 6.0)
    rates.take([], [], 7.0)
    assert rates.rates("m", 7.0).requests_per_s == 0


def test_the_newest_requests_are_kept_and_paged_by_their_ids() -> None:
    requests = RecentRequests({"k1": "alice"}.get, kept_max=5)
    requests.take([outcome(key="k1"), outcome(key="gone"), outcome(status=500)], 100.0)
    requests.take([outcome(status=429), outcome(), outcome()], 101.0)
    views = requests.views()
    assert [view.id for view in views] == [6, 5, 4, 3, 2]
    assert [view.key for view in views][-1] == "gone"
    assert [view.id for view in requests.views(before=5, limit=2)] == [4, 3]
    assert [view.id for view in requests.views(fits=lambda view: view.status >= 400)] == [4, 3]
    assert requests.views(before=2) == []
