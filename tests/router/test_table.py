"""Tables replace each other, and what is known of models and endpoints survives. No sockets, no clock."""

from __future__ import annotations

import pytest

from llmgw.messages.routes import ModelRoute, RouteEndpoint, RouteTable, TableVersion
from llmgw.router.breaker import FAILURES_TO_OPEN, OPEN_S
from llmgw.router.endpoint import SLOW_START_LEAST, SLOW_START_S
from llmgw.router.table import RoutingTable


def route(id: str, **fields: object) -> RouteEndpoint:
    return RouteEndpoint(id=id, host="10.0.0.1", port=8000, **fields)  # type: ignore[arg-type]


def table(epoch: str, number: int, *models: ModelRoute) -> RouteTable:
    return RouteTable(version=TableVersion(epoch, number), models=list(models))


def test_only_newer_tables_and_those_of_another_epoch_replace() -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    assert routing.apply(table("a", 5), 0.0)
    assert not routing.apply(table("a", 5), 0.0)
    assert not routing.apply(table("a", 4), 0.0)
    assert routing.apply(table("a", 6), 0.0)
    assert routing.apply(table("b", 1), 0.0)
    assert routing.version == TableVersion("b", 1)


def test_an_endpoints_state_survives_the_replacement_of_tables() -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    routing.apply(table("a", 1, ModelRoute(name="m", endpoints=[route("r1")])), 0.0)
    (endpoint,) = routing.models["m"].endpoints
    endpoint.begin(0.0)
    routing.apply(table("a", 2, ModelRoute(name="m", endpoints=[route("r2"), route("r1", api_key="k")])), 0.0)
    assert routing.models["m"].endpoints[1] is endpoint
    assert b"authorization: Bearer k\r\n" in endpoint.head
    routing.apply(table("a", 3, ModelRoute(name="m")), 0.0)
    assert routing.in_flight() == {"r1": 1}
    assert endpoint.retired
    assert endpoint.end(False)
    routing.forget_retired()
    assert list(routing.endpoints()) == []


def test_a_name_wins_over_an_alias() -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    routing.apply(table("a", 1, ModelRoute(name="x", aliases=["y", "z"]), ModelRoute(name="y")), 0.0)
    assert {name: model.name for name, model in routing.models.items()} == {"x": "x", "y": "y", "z": "x"}


def test_a_models_budget_and_its_ring_survive_tables_that_say_the_same_of_it() -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    two = ModelRoute(name="m", aliases=["n"], endpoints=[route("a"), route("b")], prefix_affinity=True)
    routing.apply(table("a", 1, two), 0.0)
    before = routing.models["m"]
    assert before.pool.ring is not None
    routing.apply(table("b", 1, two, ModelRoute(name="n")), 1.0)
    after = routing.models["m"]
    assert after.budget is before.budget
    assert after.pool.ring is before.pool.ring
    assert routing.models["n"].budget is not before.budget, "it was an alias of another model"
    wider = ModelRoute(name="m", endpoints=[route("a", concurrency=3), route("b")], prefix_affinity=True)
    routing.apply(table("b", 2, wider), 2.0)
    assert routing.models["m"].pool.ring is not before.pool.ring
    routing.apply(table("b", 3, ModelRoute(name="m", endpoints=[route("a")], prefix_affinity=True)), 3.0)
    assert routing.models["m"].pool.ring is None, "one endpoint needs no ring"


def test_an_endpoint_that_comes_later_or_comes_back_starts_slowly() -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    routing.apply(table("a", 1, ModelRoute(name="m", endpoints=[route("a")])), 0.0)
    routing.apply(table("a", 2, ModelRoute(name="m", endpoints=[route("a"), route("b")])), 100.0)
    a, b = routing.models["m"].endpoints
    assert (a.weight(100.0), b.weight(100.0)) == (1.0, SLOW_START_LEAST)
    assert b.weight(100.0 + SLOW_START_S) == 1.0
    a.begin(100.0)
    routing.apply(table("a", 3, ModelRoute(name="m", endpoints=[route("b")])), 200.0)
    routing.apply(table("a", 4, ModelRoute(name="m", endpoints=[route("a"), route("b")])), 300.0)
    assert routing.models["m"].endpoints[0] is a
    assert a.weight(300.0) == SLOW_START_LEAST


def test_breakers_that_are_not_closed_are_told() -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    routing.apply(table("a", 1, ModelRoute(name="m", endpoints=[route("a"), route("b")])), 0.0)
    for _ in range(FAILURES_TO_OPEN):
        routing.models["m"].endpoints[0].failed(0.0, False)
    assert routing.breakers(0.0) == {"a": "open"}
    assert routing.breakers(OPEN_S) == {"a": "half_open"}
    routing.apply(table("a", 2, ModelRoute(name="m", endpoints=[route("b")])), 0.0)
    assert routing.breakers(0.0) == {}


@pytest.mark.parametrize("fields", [{"api_key": "a\r\nx: y"}, {"base_path": "/a b"}, {"api_key": "ü"}])
def test_an_endpoint_that_could_smuggle_headers_is_left_out(fields: dict[str, str]) -> None:
    routing = RoutingTable(idle_limit_s=4.0)
    routing.apply(table("a", 1, ModelRoute(name="m", endpoints=[route("bad", **fields), route("good")])), 0.0)
    assert [endpoint.id for endpoint in routing.models["m"].endpoints] == ["good"]
    assert "bad" in routing.problems[0]
    assert "ü" not in routing.problems[0]


def limited(number: int, *, port: int = 8000, **limits: int | None) -> RouteTable:
    endpoints = [
        RouteEndpoint(id=name, host="10.0.0.1", port=port, concurrency=limit) for name, limit in limits.items()
    ]
    return table("a", number, ModelRoute(name="m", endpoints=endpoints))


def concurrency(routing: RoutingTable) -> dict[str, float]:
    return {each.id: each.concurrency for each in routing.models["m"].endpoints}


def test_a_limit_is_divided_by_the_number_of_routers_unless_this_one_has_a_part_of_its_own() -> None:
    routing = RoutingTable(idle_limit_s=4.0, workers=4)
    routing.apply(limited(1, one=64, two=2, free=None), 0.0)
    assert concurrency(routing) == {"one": 16, "two": 1, "free": float("inf")}
    routing.share(2, {"one": 50, "gone": 7})
    assert concurrency(routing) == {"one": 50, "two": 1, "free": float("inf")}
    assert routing.parts() == {"one": 50}
    routing.apply(limited(2, one=64, new=10), 0.0)
    assert concurrency(routing) == {"one": 50, "new": 5}
    routing.share(2, {})
    assert concurrency(routing) == {"one": 32, "new": 5}


def test_a_part_is_of_one_limit_and_of_an_endpoint_that_is_there() -> None:
    routing = RoutingTable(idle_limit_s=4.0, workers=2)
    routing.apply(limited(1, one=64, two=64, three=64), 0.0)
    routing.share(2, {"one": 50, "two": 50, "three": 50})
    routing.apply(limited(2, one=64, two=8, port=9000), 0.0)
    assert concurrency(routing) == {"one": 50, "two": 4}, "it has moved, or another limit"
    routing.apply(limited(3, three=64, port=9000), 0.0)
    assert concurrency(routing) == {"three": 32}, "it was gone"
    assert routing.parts() == {}
