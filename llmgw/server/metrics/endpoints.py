"""Endpoints: who answers requests, how many are on each, and which of them routers leave alone.

Bounded by the endpoints that are routed to, or still have requests; the series of one go with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from llmgw.metrics.engines import requests_of
from llmgw.metrics.family import Family, Sample
from llmgw.server.figures import endpoint_figures
from llmgw.server.metrics.source import Source

_LABELS = ("model", "endpoint")
BREAKER_STATES = ("closed", "half_open", "open")

ENDPOINTS = Family(
    "llmgw_endpoints", "gauge", "Endpoints that a model's requests may be sent to", ("model",), "models"
)
REQUESTS = Family(
    "llmgw_endpoint_requests_total",
    "counter",
    "Requests that ended and were last sent to an endpoint (a replica's id, or static:MODEL:N), by what "
    "the client got",
    (*_LABELS, "status_class"),
    "6 × endpoints",
)
IN_FLIGHT = Family(
    "llmgw_endpoint_in_flight",
    "gauge",
    "Requests that an endpoint is answering, of all routers; also after it left the rotation, until they end",
    _LABELS,
    "endpoints",
)
BREAKER = Family(
    "llmgw_endpoint_breaker_state",
    "gauge",
    "1 for the state of an endpoint's breaker, the worst of all routers: closed, half_open while one "
    "request tries, or open; else 0",
    (*_LABELS, "state"),
    "3 × endpoints",
)
BREAKERS = Family(
    "llmgw_endpoint_breakers",
    "gauge",
    "Endpoints that some router leaves alone since they fail: open, or half_open while one request tries",
    ("model", "state"),
    "2 × models",
)
ENGINE_REQUESTS = Family(
    "llmgw_endpoint_engine_requests",
    "gauge",
    "Requests that an endpoint's engine says it has running and waiting, whoever sent them",
    (*_LABELS, "state"),
    "2 × endpoints",
)
ENGINE_CACHE = Family(
    "llmgw_endpoint_engine_cache_used_ratio",
    "gauge",
    "Share of its KV cache that an endpoint's engine says it uses",
    _LABELS,
    "endpoints",
)
FAMILIES = (ENDPOINTS, REQUESTS, IN_FLIGHT, BREAKER, BREAKERS, ENGINE_REQUESTS, ENGINE_CACHE)


def endpoint_text(source: Source) -> str:
    """Every family of endpoints."""
    hub = source.hub
    table = hub.table
    routed = (
        [(route.name, [endpoint.id for endpoint in route.endpoints]) for route in table.models] if table else []
    )
    in_flight = _in_flight(source, routed)
    hub.requests.keep_endpoints(in_flight)
    breakers = _breakers(source)
    figures = endpoint_figures(hub.fleet, hub.clock.monotonic()).figures
    said = [
        ((model, endpoint), figures[endpoint])
        for model, endpoints in routed
        for endpoint in endpoints
        if endpoint in figures
    ]
    ended = sorted(hub.requests.endpoints.items())
    return (
        ENDPOINTS.text(((model,), len(endpoints)) for model, endpoints in routed)
        + REQUESTS.text(
            ((*at, status), count) for at, by_status in ended for status, count in sorted(by_status.items())
        )
        + IN_FLIGHT.text(in_flight.items())
        + BREAKER.text(
            ((model, endpoint, state), int(breakers.get(endpoint, "closed") == state))
            for model, endpoints in routed
            for endpoint in endpoints
            for state in BREAKER_STATES
        )
        + BREAKERS.text(_counts(routed, source))
        + ENGINE_REQUESTS.grouped((at, requests_of([figure])) for at, figure in said)
        + ENGINE_CACHE.text((at, figure.cache_used) for at, figure in said)
    )


def _in_flight(source: Source, routed: list[tuple[str, list[str]]]) -> dict[tuple[str, str], int]:
    """(model, endpoint) → requests, of every endpoint in the table or with requests."""
    fleet = source.hub.fleet
    counts: Counter[str] = Counter()
    for router in fleet.routers.values():
        counts.update(router.in_flight)
    found = {(model, endpoint): counts[endpoint] for model, endpoints in routed for endpoint in endpoints}
    for endpoint, count in counts.items():
        replica = fleet.replicas.get(endpoint)
        if replica is not None and count:
            found[replica.model, endpoint] = count
    return dict(sorted(found.items()))


def _breakers(source: Source) -> dict[str, str]:
    """Endpoint → the worst state of its breaker, where it is not closed."""
    worst: dict[str, str] = {}
    for breakers in source.hub.breakers.values():
        for endpoint, state in breakers.items():
            if worst.get(endpoint) != "open":
                worst[endpoint] = state
    return worst


def _counts(routed: list[tuple[str, list[str]]], source: Source) -> Iterator[Sample]:
    seen: dict[str, set[str]] = {}
    for breakers in source.hub.breakers.values():
        for endpoint, state in breakers.items():
            seen.setdefault(state, set()).add(endpoint)
    for model, endpoints in routed:
        for state in ("open", "half_open"):
            yield (model, state), sum(endpoint in seen.get(state, ()) for endpoint in endpoints)
