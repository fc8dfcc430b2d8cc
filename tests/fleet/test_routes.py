"""What the catalog says of requests reaches the routers with the route table."""

from __future__ import annotations

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.routes import routes
from llmgw.messages.routes import RouteEndpoint
from tests.fleet.world import Machine, World


def catalog(concurrency: int | None = None, weight: float = 1.0, **fields: object) -> Catalog:
    profile = Profile(engine="sim", gpus_per_node=1, replicas=2, concurrency=concurrency, weight=weight)
    return Catalog(models=[CatalogModel(name="m", profiles=[profile], **fields)])  # type: ignore[arg-type]


def test_a_profiles_concurrency_and_weight_stand_with_each_of_its_replicas_and_changing_it_restarts_none() -> (
    None
):
    world = World(catalog(), [Machine("node01", ["ib-a"])])
    world.run(20)
    (route,) = routes(world.fleet, world.catalog, {})
    assert [(endpoint.concurrency, endpoint.weight) for endpoint in route.endpoints] == [(None, 1.0)] * 2
    before = world.serving("m")
    world.apply(catalog(16, 0.1))
    world.run(5)
    (route,) = routes(world.fleet, world.catalog, {})
    assert [(endpoint.concurrency, endpoint.weight) for endpoint in route.endpoints] == [(16, 0.1)] * 2
    assert world.serving("m") == before


def test_a_models_deadlines_and_its_affinity_stand_in_its_route() -> None:
    world = World(catalog(), [])
    (route,) = routes(world.fleet, world.catalog, {})
    said = (route.first_byte_timeout_s, route.chunk_timeout_s, route.request_timeout_s, route.prefix_affinity)
    assert said == (600.0, 300.0, 3600.0, False)
    long = catalog(first_byte_timeout="50m", chunk_timeout="9s", prefix_affinity=True)
    (route,) = routes(world.fleet, long, {})
    assert (route.chunk_timeout_s, route.request_timeout_s, route.prefix_affinity) == (9.0, 6000.0, True)
    (route,) = routes(world.fleet, catalog(request_timeout="20m"), {})
    assert route.request_timeout_s == 1200.0


def test_what_a_model_is_for_and_how_much_it_takes_stand_in_its_route() -> None:
    static = {"m": [RouteEndpoint(id=name, host="10.0.0.1", port=1) for name in ("a", "b", "c")]}
    world = World(catalog(), [])
    (route,) = routes(world.fleet, world.catalog, static)
    assert (route.kinds, route.context_length, route.anthropic) == (
        ["chat", "completions", "messages"],
        None,
        "auto",
    )
    (route,) = routes(world.fleet, world.catalog, static, 0, {"a": 8192, "b": 4096, "gone": 1})
    assert route.context_length == 4096
    told = catalog(task="rerank", context_length=512, anthropic="translate")
    (route,) = routes(world.fleet, told, static, 0, {"a": 8192})
    assert (route.kinds, route.context_length, route.anthropic) == (["rerank"], 512, "translate")


def test_what_may_wait_for_a_model_stands_in_its_route_and_changing_it_restarts_none() -> None:
    world = World(catalog(), [Machine("node01", ["ib-a"])])
    world.run(20)
    before = world.serving("m")
    world.apply(catalog(queue={"requests_max": 7, "bytes_max": "3MiB", "timeout": "90s"}, pings=True))
    world.run(5)
    (route,) = routes(world.fleet, world.catalog, {})
    said = (route.queue_requests_max, route.queue_bytes_max, route.queue_timeout_s, route.pings)
    assert said == (7, 3 * 1024**2, 90.0, True)
    assert world.serving("m") == before
