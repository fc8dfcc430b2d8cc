"""What routers saw of requests is counted by model, and by no more models than the catalog has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmgw.messages.routes import Outcome
from llmgw.metrics.family import OTHER
from llmgw.metrics.histogram import REQUEST_BOUNDS_S as BOUNDS_S
from llmgw.metrics.histogram import Histogram
from llmgw.server.request_tally import RequestTally


def test_requests_are_counted_by_what_the_client_got() -> None:
    tally = RequestTally()
    tally.take(
        [
            Outcome(model="m", endpoint="m-1", status=200, first_byte_s=0.2, total_s=3.0),
            Outcome(model="m", endpoint="m-1", status=200, retries=2, first_byte_s=0.02, total_s=0.02),
            Outcome(model="m", endpoint=None, status=503, total_s=0.001, retry_refused=True),
            Outcome(model="m", endpoint="m-1", status=499, total_s=1.0),
            Outcome(model="m", endpoint="m-1", status=0, total_s=1.0),
        ],
        dropped=3,
        known={"m"},
    )
    model = tally.models["m"]
    assert model.by_status == {"2xx": 2, "4xx": 0, "5xx": 2, "client_left": 1}
    assert (model.retries, model.retries_refused, tally.dropped) == (2, 1, 3)
    assert sum(model.first_byte.counts) == 2
    assert sum(model.total.counts) == 5


def test_names_that_clients_make_up_share_one_series() -> None:
    tally = RequestTally()
    made_up = [Outcome(model=f"x{n}", endpoint=None, status=404) for n in range(1000)]
    tally.take([*made_up, Outcome(model="", endpoint=None, status=404)], 0, {"m"})
    assert set(tally.models) == {OTHER}
    assert tally.models[OTHER].by_status["4xx"] == 1001


def test_a_model_that_leaves_the_catalog_is_forgotten() -> None:
    tally = RequestTally()
    tally.take([Outcome(model=name, endpoint=None, status=200) for name in ("a", "b", "c")], 0, {"a", "b"})
    tally.keep({"b"})
    assert set(tally.models) == {"b", OTHER}


@given(st.lists(st.floats(min_value=0, max_value=1e5, allow_nan=False)))
def test_a_histogram_s_buckets_are_cumulative_and_hold_everything(durations_s: list[float]) -> None:
    histogram = Histogram()
    for duration_s in durations_s:
        histogram.add(duration_s)
    buckets = histogram.cumulative()
    assert buckets[-1] == ("+Inf", len(durations_s))
    for bound, (text, count) in zip(BOUNDS_S, buckets, strict=False):
        assert float(text) == bound
        assert count == sum(1 for duration_s in durations_s if duration_s <= bound)
