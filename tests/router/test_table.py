"""Which endpoint is chosen: least load, ties at random, breakers, versions. No sockets, no clock."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from llmgw.messages.routes import ModelRoute, RouteEndpoint, RouteTable, TableVersion
from llmgw.router.table import FAILURES_TO_OPEN, OPEN_S, Endpoint, RoutingTable, choose


def route(id: str, **fields: object) -> RouteEndpoint:
    return RouteEndpoint(id=id, host="10.0.0.1", port=8000, **fields)  # type: ignore[arg-type]


def endpoints(count: int) -> list[Endpoint]:
    return [Endpoint(route(f"e{index}"), idle_limit_s=4.0) for index in range(count)]


def table(epoch: str, number: int, *models: ModelRoute) -> RouteTable:
    return RouteTable(version=TableVersion(epoch, number), models=list(models))


def test_the_endpoint_with_the_fewest_outstanding_requests_is_chosen() -> None:
    a, b, c = endpoints(3)
    for endpoint in (a, a, b, c, c):
        endpoint.begin(0.0)
    assert choose([a, b, c], 0.0, [], random.random) is b
    assert choose([a, b, c], 0.0, [b, a, c], random.random) is None


def test_ties_are_spread_evenly() -> None:
    these = endpoints(4)
    generator = random.Random(1)
    counts = Counter(choose(these, 0.0, [], generator.random) for _ in range(4000))
    assert all(900 < counts[endpoint] < 1100 for endpoint in these)


def test_a_fast_failure_counts_as_load_and_fades() -> None:
    failing, busy = endpoints(2)
    for _ in range(5):
        busy.begin(0.0)
    failing.failed(0.0)
    assert choose([failing, busy], 0.1, [], random.random) is busy
    assert choose([failing, busy], 10.0, [], random.random) is failing


def test_the_breaker_opens_probes_once_and_closes() -> None:
    bad, good = endpoints(2)
    for _ in range(FAILURES_TO_OPEN):
        bad.failed(0.0)
    assert not bad.available(OPEN_S - 0.1)
    good.outstanding = 100
    assert choose([bad, good], OPEN_S - 0.1, [], random.random) is good
    assert choose([bad, good], OPEN_S + 30, [], random.random) is bad
    assert bad.begin(OPEN_S + 30)
    assert choose([bad, good], OPEN_S + 30, [], random.random) is good, "one probe at a time"
    bad.succeeded()
    bad.end(True)
    assert bad.available(OPEN_S + 30)
    assert bad.failures == 0


def test_a_failed_probe_opens_the_breaker_for_longer() -> None:
    (endpoint,) = endpoints(1)
    for _ in range(FAILURES_TO_OPEN):
        endpoint.failed(0.0)
    now = OPEN_S + 0.1
    probe = endpoint.begin(now)
    endpoint.failed(now)
    endpoint.end(probe)
    assert not endpoint.available(now + OPEN_S + 0.1)
    assert endpoint.available(now + 2 * OPEN_S + 0.1)


def test_a_model_whose_breakers_are_all_open_tries_the_least_bad_one() -> None:
    first, second = endpoints(2)
    for _ in range(FAILURES_TO_OPEN):
        first.failed(5.0)
        second.failed(4.0)
    assert choose([first, second], 5.5, [], random.random) is second


def test_a_client_error_never_opens_a_breaker_and_closes_an_open_one() -> None:
    (endpoint,) = endpoints(1)
    for _ in range(FAILURES_TO_OPEN):
        endpoint.failed(0.0)
    endpoint.answered()
    assert endpoint.available(0.0)


def test_only_newer_tables_and_those_of_another_epoch_replace() -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    assert routing.apply(table("a", 5))
    assert not routing.apply(table("a", 5))
    assert not routing.apply(table("a", 4))
    assert routing.apply(table("a", 6))
    assert routing.apply(table("b", 1))
    assert routing.version == TableVersion("b", 1)


def test_an_endpoints_state_survives_the_replacement_of_tables() -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    routing.apply(table("a", 1, ModelRoute(name="m", endpoints=[route("r1")])))
    (endpoint,) = routing.models["m"].endpoints
    endpoint.begin(0.0)
    routing.apply(table("a", 2, ModelRoute(name="m", endpoints=[route("r2"), route("r1", api_key="k")])))
    assert routing.models["m"].endpoints[1] is endpoint
    assert b"authorization: Bearer k\r\n" in endpoint.head
    routing.apply(table("a", 3, ModelRoute(name="m")))
    assert routing.in_flight() == {"r1": 1}
    assert endpoint.retired
    assert endpoint.end(False)
    routing.forget_retired()
    assert list(routing.endpoints()) == []


def test_a_name_wins_over_an_alias() -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    routing.apply(table("a", 1, ModelRoute(name="x", aliases=["y", "z"]), ModelRoute(name="y")))
    assert {name: model.name for name, model in routing.models.items()} == {"x": "x", "y": "y", "z": "x"}


@pytest.mark.parametrize("fields", [{"api_key": "a\r\nx: y"}, {"base_path": "/a b"}, {"api_key": "ü"}])
def test_an_endpoint_that_could_smuggle_headers_is_left_out(fields: dict[str, str]) -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    routing.apply(table("a", 1, ModelRoute(name="m", endpoints=[route("bad", **fields), route("good")])))
    assert [endpoint.id for endpoint in routing.models["m"].endpoints] == ["good"]
    assert "bad" in routing.problems[0]
    assert "ü" not in routing.problems[0]
