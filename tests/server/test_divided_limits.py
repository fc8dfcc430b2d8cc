"""Limits that routers hold together: never more in use than the limit, and those that need more have more."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.server.divided_limits import DividedLimits, Parts

ENDPOINT = "r-1"


class Router:
    """A router that obeys: it begins nothing beyond its part, and hears of a new one some time later."""

    def __init__(self, workers: int) -> None:
        self.parts = Parts(workers)
        self.coming: list[Parts] = []
        self.running = 0
        self.wanted = 0

    def step(self, limit: int) -> None:
        while self.running < min(self.wanted, self.parts.part(ENDPOINT, limit)):
            self.running += 1


class World:
    def __init__(self, routers: int, limit: int) -> None:
        self.limit = limit
        self.divided = DividedLimits()
        self.routers = {f"router-{number}": Router(routers) for number in range(routers)}
        self.limits = {ENDPOINT: limit}
        for name, router in self.routers.items():
            self.divided.joined(name, router.parts)

    def report(self, name: str) -> None:
        router = self.routers[name]
        waiting = max(0, router.wanted - router.running)
        self.divided.used(name, {ENDPOINT: router.running}, {ENDPOINT: float(waiting)}, acked=not router.coming)

    def divide(self) -> None:
        for name, parts in self.divided.divide(self.limits, len(self.routers)).items():
            self.routers[name].coming.append(parts)

    def hear(self, name: str) -> None:
        router = self.routers[name]
        if router.coming:
            router.parts = router.coming.pop(0)

    def running(self) -> int:
        for router in self.routers.values():
            router.step(self.limit)
        return sum(router.running for router in self.routers.values())

    def settle(self, rounds: int = 12) -> None:
        for _ in range(rounds):
            for name in self.routers:
                self.hear(name)
                self.running()
                self.report(name)
            self.divide()

    def parts(self) -> dict[str, int]:
        return {name: router.parts.part(ENDPOINT, self.limit) for name, router in self.routers.items()}


@settings(max_examples=300, deadline=None)
@given(
    routers=st.integers(1, 5),
    limit=st.integers(1, 70),
    seed=st.integers(0, 2**32),
)
def test_together_they_never_run_more_than_the_limit_however_slow_their_messages_are(
    routers: int, limit: int, seed: int
) -> None:
    world = World(routers, limit)
    chance = random.Random(seed)
    names = list(world.routers)
    for _ in range(200):
        name = chance.choice(names)
        router = world.routers[name]
        match chance.randrange(6):
            case 0:
                router.wanted = chance.choice([0, 1, limit // 2, limit, 3 * limit])
            case 1:
                router.running = chance.randint(0, router.running)
                router.wanted = max(router.wanted, router.running)
            case 2 | 3:
                world.report(name)
            case 4:
                world.divide()
            case _:
                world.hear(name)
        assert world.running() <= max(limit, routers)
        assert all(len(each.coming) <= 1 for each in world.routers.values())


def test_a_router_that_is_alone_with_its_load_gets_nearly_the_whole() -> None:
    world = World(2, 64)
    world.routers["router-0"].wanted = 200
    world.settle()
    assert world.parts() == {"router-0": 56, "router-1": 8}
    assert world.running() == 56


def test_what_was_given_comes_back_when_others_need_it() -> None:
    world = World(2, 64)
    one, other = world.routers.values()
    one.wanted = 200
    world.settle()
    other.wanted = 200
    world.settle()
    assert sum(world.parts().values()) <= 64
    assert one.running == 56, "what runs is not ended"
    one.running = 0
    world.settle()
    assert world.parts() == {"router-0": 32, "router-1": 32}


def test_what_a_dead_router_had_is_the_others() -> None:
    world = World(2, 64)
    one, other = world.routers.values()
    one.wanted = other.wanted = 200
    world.settle()
    del world.routers["router-1"]
    world.divided.left("router-1")
    world.settle()
    assert world.running() == 64


def test_a_router_that_hears_nothing_keeps_what_it_has() -> None:
    world = World(2, 64)
    one, other = world.routers.values()
    world.routers["router-0"].wanted = 200
    for _ in range(5):
        world.hear("router-0")
        world.running()
        world.report("router-0")
        world.divide()
    # router-1 never acknowledged its smaller part.
    assert other.parts.part(ENDPOINT, 64) == 32
    assert one.running == 32


def test_nothing_is_sent_while_nobody_needs_more() -> None:
    world = World(3, 60)
    for router in world.routers.values():
        router.wanted = 10
    world.settle()
    assert all(router.parts == Parts(3) for router in world.routers.values())


def test_a_limit_that_changes_begins_anew() -> None:
    world = World(2, 64)
    world.routers["router-0"].wanted = 200
    world.settle()
    world.limits = {ENDPOINT: 16}
    for router in world.routers.values():  # a router forgets its part when it hears of the new limit
        router.parts = Parts(2)
        router.running = 0
    world.limit = 16
    world.settle()
    assert world.parts() == {"router-0": 14, "router-1": 2}


def test_one_that_returns_with_the_parts_it_had_is_reckoned_with_them() -> None:
    divided = DividedLimits()
    divided.joined("a", Parts(2, {ENDPOINT: 56}))
    divided.joined("b", Parts(2, {ENDPOINT: 8}))
    divided.used("a", {}, {}, acked=False)
    divided.used("b", {ENDPOINT: 8}, {ENDPOINT: 20.0}, acked=False)
    sent = divided.divide({ENDPOINT: 64}, 2)
    assert set(sent) == {"a"}, "b has nothing until a has acknowledged less"
    assert sent["a"].part(ENDPOINT, 64) == 8
    divided.used("a", {}, {}, acked=True)
    assert divided.divide({ENDPOINT: 64}, 2)["b"].part(ENDPOINT, 64) == 56


def test_nothing_is_given_before_all_have_said_what_they_run() -> None:
    divided = DividedLimits()
    divided.joined("a", Parts(2, {ENDPOINT: 8}))
    divided.joined("b", Parts(2, {ENDPOINT: 8}))
    divided.used("b", {ENDPOINT: 8}, {ENDPOINT: 20.0}, acked=False)
    assert divided.divide({ENDPOINT: 64}, 2) == {}
    divided.used("a", {ENDPOINT: 50}, {}, acked=False)  # what it began while it had more
    assert divided.divide({ENDPOINT: 64}, 2)["b"].part(ENDPOINT, 64) == 64 - 50
