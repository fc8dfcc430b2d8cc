"""What engines say of their load decides between two that have equally much from this router."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from llmgw.messages.frames import encode_frame
from llmgw.messages.routes import (
    FIGURES_STALE_S,
    EndpointFigure,
    EndpointFigures,
    ModelRoute,
    RouteEndpoint,
    RouteTable,
    TableVersion,
)
from llmgw.router.endpoint import Endpoint
from llmgw.router.table import RoutingTable
from tests.router.support import Fleet, model, plain, post
from tests.router.test_control import RawControl


def table(count: int) -> RoutingTable:
    routing = RoutingTable(idle_limit_s=4.0)
    endpoints = [RouteEndpoint(id=f"e{index}", host="10.0.0.1", port=8000) for index in range(count)]
    route = ModelRoute(name="m", endpoints=endpoints)
    routing.apply(RouteTable(version=TableVersion("a", 1), models=[route]), 0.0)
    return routing


def said(**figures: EndpointFigure) -> EndpointFigures:
    return EndpointFigures(figures=figures)


def draws(routing: RoutingTable, now: float = 100.0) -> Counter[str]:
    pool, generator = routing.models["m"].pool, random.Random(3)
    counts: Counter[str] = Counter()
    for _ in range(600):
        chosen = pool.choose(now, [], generator.random)
        assert chosen is not None
        counts[chosen.id] += 1
    return counts


def by_id(routing: RoutingTable, name: str) -> Endpoint:
    return next(each for each in routing.endpoints() if each.id == name)


def test_of_two_that_are_equal_the_one_without_a_queue_is_chosen_and_then_the_emptier_cache() -> None:
    routing = table(2)
    routing.take_figures(said(e0=EndpointFigure(waiting=3), e1=EndpointFigure(waiting=0)), 100.0)
    assert draws(routing) == {"e1": 600}
    fuller = EndpointFigure(waiting=0, cache_used=0.9)
    routing.take_figures(said(e0=EndpointFigure(cache_used=0.2), e1=fuller), 100.0)
    assert draws(routing) == {"e0": 600}
    routing.take_figures(said(e0=EndpointFigure(cache_used=0.21), e1=EndpointFigure(cache_used=0.29)), 100.0)
    assert min(draws(routing).values()) > 200, "a few percent are no difference"


def test_what_this_router_has_outstanding_says_more() -> None:
    routing = table(2)
    routing.take_figures(said(e0=EndpointFigure(waiting=0), e1=EndpointFigure(waiting=900)), 100.0)
    by_id(routing, "e0").begin(100.0)
    assert draws(routing) == {"e1": 600}


def test_figures_that_are_stale_gone_or_only_one_sides_decide_nothing() -> None:
    routing = table(2)
    one = said(e0=EndpointFigure(waiting=9), e1=EndpointFigure(waiting=0, age_s=5.0))
    routing.take_figures(one, 100.0)
    assert draws(routing, 100.0 + FIGURES_STALE_S - 5.1) == {"e1": 600}
    assert min(draws(routing, 100.0 + FIGURES_STALE_S - 4.9).values()) > 200, "the second one's are stale"
    routing.take_figures(one, 200.0)
    routing.take_figures(said(e0=EndpointFigure(waiting=9)), 200.0)
    assert min(draws(routing, 200.0).values()) > 200
    routing.take_figures(said(e0=EndpointFigure(running=3), e1=EndpointFigure(running=1)), 200.0)
    assert min(draws(routing, 200.0).values()) > 200, "what runs there is known better here"


def test_a_router_takes_figures_from_its_control_process(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engines = [await fleet.engine(plain()) for _ in range(2)]
        await fleet.route(model("m", *engines))
        snapshot = model("m", *engines)
        busy, calm = (each.id for each in snapshot.endpoints)
        await fleet.unlink()
        control = await RawControl.connect(fleet)
        await control.next()
        message = said(**{busy: EndpointFigure(waiting=50), calm: EndpointFigure(waiting=0)})
        control.writer.write(encode_frame(message))
        # Acknowledged by nothing: a table behind it in the same stream is, once both were taken.
        version = TableVersion("figures", 1)
        control.writer.write(encode_frame(RouteTable(version=version, models=[snapshot])))
        async with asyncio.timeout(10):
            while getattr(await control.next(), "acked", None) != version:
                pass
        answers = [await fleet.ask(post()) for _ in range(20)]
        assert {answer.headers["x-llmgw-replica"] for answer in answers} == {calm}

    play(scenario)
