"""The routers: one series for each process, by its name; bounded by how many live."""

from __future__ import annotations

from llmgw.metrics.family import Family
from llmgw.server.metrics.source import Source

STATES = ("starting", "serving", "finishing", "silent")
STATE = Family(
    "llmgw_router_state",
    "gauge",
    "1 for what a router does: starting, serving, finishing (it accepts no more), or silent",
    ("router", "state"),
    "4 × routers that live",
)
IN_FLIGHT = Family(
    "llmgw_router_in_flight",
    "gauge",
    "Requests that engines are answering through a router",
    ("router",),
    "routers that live",
)
REQUESTS = Family(
    "llmgw_router_requests_total",
    "counter",
    "Requests that ended in the routers of a name, one after the other, since this server started",
    ("router",),
    "routers that live",
)
SPANS = Family(
    "llmgw_router_spans_total",
    "counter",
    "Spans of traces that the collector took from the routers of a name (sent), and that were dropped",
    ("router", "state"),
    "2 × routers that live",
)
FAMILIES = (STATE, IN_FLIGHT, REQUESTS, SPANS)


def router_text(source: Source) -> str:
    """Which routers live, what they are doing, and what each has done."""
    views = source.routers()
    return (
        STATE.text(((view.name, name), int(view.state == name)) for view in views for name in STATES)
        + IN_FLIGHT.text(((view.name,), view.in_flight) for view in views)
        + REQUESTS.text(((view.name,), view.requests) for view in views)
        + SPANS.grouped(
            ((view.name,), [("sent", view.spans_sent), ("dropped", view.spans_dropped)]) for view in views
        )
    )
