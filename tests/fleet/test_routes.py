"""What the catalog says of requests reaches the routers with the route table."""

from __future__ import annotations

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.routes import routes
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
