"""Who may wait, who is told when to come back, and who starts when there is room."""

from __future__ import annotations

import pytest

from llmgw.messages.routes import ModelRoute, RouteEndpoint
from llmgw.router.admission import RETRY_AFTER_UNKNOWN_S, Admission
from llmgw.router.choice import Pool
from llmgw.router.endpoint import Endpoint
from llmgw.router.errors import ApiError
from llmgw.router.queue import Waiter
from llmgw.router.retry_budget import RetryBudget
from llmgw.router.table import Model

LATER = 1e9


class World:
    """A model on endpoints that are full, and what becomes of those that wait for it."""

    def __init__(self, *limits: int, workers: int = 1, **fields: object) -> None:
        routes = [
            RouteEndpoint(id=f"e{at}", host="127.0.0.1", port=1, concurrency=limit)
            for at, limit in enumerate(limits)
        ]
        self.endpoints = [Endpoint(route, idle_limit_s=1.0) for route in routes]
        self.admission = Admission()
        route = ModelRoute(name="m", endpoints=routes, **fields)  # type: ignore[arg-type]
        self.model = Model(route, Pool(self.endpoints), RetryBudget(0.0), self.admission)
        self.admission.follow(self.model, workers)
        for endpoint in self.endpoints:
            while endpoint.usable(0.0):
                endpoint.begin(0.0)
        self.started: list[tuple[Waiter, str]] = []
        self.refused: list[tuple[Waiter, ApiError]] = []

    def join(self, now: float = 0.0, ends_at: float = LATER, **fields: object) -> Waiter:
        def admit(model: Model, endpoint: Endpoint, at: float) -> None:
            endpoint.begin(at)
            self.started.append((waiter, endpoint.id))

        waiter = Waiter(
            came_at=now,
            admit=admit,
            refuse=lambda error: self.refused.append((waiter, error)),
            **fields,  # type: ignore[arg-type]
        )
        self.until = self.admission.join(waiter, now, ends_at)
        return waiter

    def end_one(self, now: float, at: int = 0) -> None:
        self.endpoints[at].end(False)
        self.admission.room_at(self.endpoints[at], now)


def refusal(world: World, **fields: object) -> ApiError:
    with pytest.raises(ApiError) as raised:
        world.join(**fields)  # type: ignore[arg-type]
    return raised.value


def retry_after(error: ApiError) -> int:
    (line,) = error.headers
    assert line.startswith(b"retry-after: ")
    return int(line.split()[1])


def test_one_waits_until_there_is_room_and_knows_how_long_it_has() -> None:
    world = World(1)
    waiter = world.join(5.0, size=10)
    assert (world.admission.waiting, waiter.place) == (1, 1)
    assert world.until == 35.0
    world.end_one(9.0)
    assert world.started == [(waiter, "e0")]
    assert (waiter.waits, waiter.waited_s, world.admission.waiting) == (False, 4.0, 0)


def test_it_waits_no_longer_than_its_request_may_take() -> None:
    world = World(1)
    world.join(0.0, ends_at=7.0)
    assert world.until == 7.0


def test_a_place_that_one_leaves_is_free() -> None:
    world = World(1, queue_requests_max=1)
    leaver = world.join(0.0)
    assert refusal(world).code == "queue_full"
    world.admission.leave(leaver, 3.0)
    assert leaver.waited_s == 3.0
    world.join(3.0)
    assert world.admission.waiting == 1


def test_each_of_several_workers_has_its_part_of_the_bounds() -> None:
    world = World(4, workers=4, queue_requests_max=10)
    world.join()
    world.join()
    assert refusal(world).code == "queue_full"
    least = World(4, workers=4, queue_requests_max=1)
    least.join()
    assert refusal(least).code == "queue_full"


def test_whose_place_is_taken_is_told_and_keeps_the_count_right() -> None:
    world = World(1, queue_requests_max=2)
    greedy = [world.join(0.0, caller="greedy") for _ in range(2)]
    modest = world.join(1.0, caller="modest")
    ((gone, error),) = world.refused
    assert gone is greedy[1]
    assert error.code == "queue_full"
    assert gone.waited_s == 1.0
    assert world.admission.waiting == 2
    world.end_one(2.0)
    world.end_one(2.0)
    assert [waiter for waiter, _ in world.started] == [greedy[0], modest]


def test_when_to_come_back_follows_from_the_rate_and_is_bounded() -> None:
    world = World(1, queue_requests_max=8)
    for _ in range(8):
        world.join()
    assert retry_after(refusal(world)) == RETRY_AFTER_UNKNOWN_S
    for second in range(1, 5):
        world.end_one(float(second))
        world.join(float(second))
    assert retry_after(refusal(world, now=4.0)) in (8, 9), "eight wait, and one starts in a second"
    assert retry_after(refusal(world, now=300.0)) == 60
    fast = World(1, queue_requests_max=2)
    for _ in range(2):
        fast.join()
    for step in range(1, 100):
        fast.end_one(step / 1000)
        fast.join(step / 1000)
    assert retry_after(refusal(fast, now=0.1)) == 1


def test_what_could_not_start_in_time_is_refused_before_it_waits() -> None:
    world = World(1, queue_timeout_s=10.0)
    for _ in range(5):
        world.join()
    world.end_one(2.0)
    world.join(2.0)
    assert world.admission.waiting == 5
    error = refusal(world, now=2.0)
    assert error.code == "queue_too_long"
    assert "it would wait about 12 s for an engine, and may wait 10 s" in error.message
    assert world.join(2.0, priority=1).waits, "before all the others there is time"


def test_one_burst_or_pause_of_engines_with_many_requests_is_not_taken_for_the_rate() -> None:
    world = World(64, queue_timeout_s=30.0)
    for _ in range(50):
        world.join()
    world.end_one(10.0)
    world.join(10.0)  # the first of 64 that began together, and the others are about to end
    for _ in range(20):
        world.end_one(10.1)
    assert len(world.started) == 21
    assert not world.refused


def test_a_request_that_is_sent_again_waits_whatever_the_bounds_and_not_for_where_it_was() -> None:
    world = World(1, 1, queue_requests_max=1)
    world.join()
    again = world.join(tried=[world.endpoints[0]])
    assert world.admission.waiting == 2
    world.end_one(1.0, at=0)
    world.end_one(2.0, at=1)
    assert world.started[1] == (again, "e1")
    assert world.started[0][0] is not again


def test_nothing_is_sent_to_an_endpoint_that_is_routed_to_no_more() -> None:
    world = World(1)
    world.join()
    world.endpoints[0].retired = True
    world.end_one(1.0)
    assert not world.started


def test_a_look_starts_as_many_as_there_is_room_for() -> None:
    world = World(3, 2)
    waiters = [world.join() for _ in range(9)]
    world.endpoints[0].outstanding = 1
    world.endpoints[1].outstanding = 0
    world.admission.look(1.0)
    assert [waiter for waiter, _ in world.started] == waiters[:4]
    assert sorted(endpoint for _, endpoint in world.started) == ["e0", "e0", "e1", "e1"]


def test_nobody_waits_for_a_model_that_nothing_serves() -> None:
    world = World(1)
    waiter = world.join()
    none = Model(ModelRoute(name="m", reason="it is scaled to zero"), Pool([]), RetryBudget(0.0), world.admission)
    world.admission.follow(none, 1)
    world.admission.moved(none, "m", [], 2.0)
    assert [(each, error.code) for each, error in world.refused] == [(waiter, "model_not_ready")]
    assert world.admission.waiting == 0
