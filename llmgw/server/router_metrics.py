"""The routers in `/metrics`: one series for each process, by its name; bounded by how many live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from llmgw.server.router_worker import RouterView

STATES = ("starting", "serving", "finishing", "silent")


def router_metrics(views: Sequence[RouterView]) -> Iterator[Metric]:
    """Which routers live, what they are doing, and what each has done."""
    state = GaugeMetricFamily(
        "llmgw_router_state",
        "1 for what a router does: starting, serving, finishing (it accepts no more), or silent",
        labels=["router", "state"],
    )
    in_flight = GaugeMetricFamily(
        "llmgw_router_in_flight", "Requests that engines are answering through a router", labels=["router"]
    )
    requests = CounterMetricFamily(
        "llmgw_router_requests", "Requests that ended in a router, since this server knows it", labels=["router"]
    )
    spans = CounterMetricFamily(
        "llmgw_router_spans",
        "Spans of traces that the collector took from a router, or that were dropped",
        labels=["router", "state"],
    )
    for view in views:
        for name in STATES:
            state.add_metric([view.name, name], float(view.state == name))
        in_flight.add_metric([view.name], view.in_flight)
        requests.add_metric([view.name], view.requests)
        spans.add_metric([view.name, "sent"], view.spans_sent)
        spans.add_metric([view.name, "dropped"], view.spans_dropped)
    yield from (state, in_flight, requests, spans)
