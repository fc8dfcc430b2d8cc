"""The order in which requests leave a queue: by priority, fairly between callers, and nobody is lost."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from llmgw.router.queue import PASSED_MAX, FairQueue, Waiter


def waiter(caller: str = "", priority: int = 0, size: int = 1, tried: object = ()) -> Waiter:
    return Waiter(
        came_at=0.0,
        size=size,
        caller=caller,
        priority=priority,
        tried=tried,  # type: ignore[arg-type]
        admit=lambda: None,
        refuse=lambda: None,
    )


def filled(*waiters: Waiter) -> FairQueue:
    queue = FairQueue()
    for each in waiters:
        each.place = queue.place_for(each)
        queue.join(each)
    return queue


def drained(queue: FairQueue) -> list[Waiter]:
    out = []
    while (each := queue.pop()) is not None:
        out.append(each)
    return out


class QueueMachine(RuleBasedStateMachine):
    """Joins, leaves, starts and displacements in any order, against a plain list."""

    waiters = Bundle("waiters")

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue()
        self.there: list[Waiter] = []

    @rule(
        target=waiters,
        caller=st.sampled_from("abc"),
        priority=st.integers(0, 2),
        size=st.integers(0, 9),
        again=st.booleans(),
    )
    def join(self, caller: str, priority: int, size: int, again: bool) -> Waiter:
        new = waiter(caller, priority, size, ["x"] if again else ())
        new.place = self.queue.place_for(new)
        self.queue.join(new)
        self.there.append(new)
        return new

    @rule(gone=consumes(waiters))
    def leave(self, gone: Waiter) -> None:
        if gone in self.there:
            self.queue.leave(gone)
            self.there.remove(gone)

    @rule(endpoint=st.sampled_from(["x", "y"]))
    def pop(self, endpoint: str) -> None:
        first = self.queue.pop(endpoint)
        usable = [each for each in self.there if endpoint not in each.tried]
        if first is None:
            again = [each for each in self.there if each.tried]
            assert not usable
            assert again == self.there
            return
        assert first in usable
        before = self.there[: self.there.index(first)]
        same = [each for each in before if (each.caller, each.priority) == (first.caller, first.priority)]
        assert first.tried or all(each.tried for each in same), "a caller's own are in order"
        self.there.remove(first)

    @rule(
        caller=st.sampled_from("abcd"),
        priority=st.integers(0, 2),
        size=st.integers(0, 20),
        count_max=st.integers(1, 6),
        bytes_max=st.integers(1, 30),
    )
    def displace(self, caller: str, priority: int, size: int, count_max: int, bytes_max: int) -> None:
        new = waiter(caller, priority, size)
        gone = self.queue.displaced_by(new, count_max=count_max, bytes_max=bytes_max)
        if gone is None:
            return
        assert all(each in self.there and not each.tried for each in gone)
        assert all(each.priority <= priority for each in gone)
        assert len({each.caller for each in gone}) <= 1
        for each in gone:
            assert each.caller != caller or each.priority < priority
            self.queue.leave(each)
            self.there.remove(each)
        left = [each for each in self.there if not each.tried]
        if gone:
            assert len(left) + 1 <= max(count_max, len(left) + len(gone)), "somebody made place"

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.queue.count == len(self.there)
        assert self.queue.bytes == sum(each.size for each in self.there if not each.tried)
        assert set(self.queue) == set(self.there)

    @invariant()
    def places_are_possible(self) -> None:
        for each in self.there:
            assert 1 <= self.queue.place_of(each) <= len(self.there)


QueueMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_nothing_is_lost_whatever_happens = QueueMachine.TestCase


def test_one_caller_is_served_in_order_of_arrival() -> None:
    waiters = [waiter() for _ in range(20)]
    queue = filled(*waiters)
    assert [queue.place_of(each) for each in waiters] == list(range(1, 21))
    assert [each.place for each in waiters] == list(range(1, 21))
    assert drained(queue) == waiters


@given(counts=st.lists(st.integers(1, 30), min_size=2, max_size=6), seed=st.integers(0, 2**32))
def test_of_callers_that_wait_none_has_more_than_one_turn_more(counts: list[int], seed: int) -> None:
    waiters = [waiter(str(caller)) for caller, count in enumerate(counts) for _ in range(count)]
    random.Random(seed).shuffle(waiters)
    queue = filled(*waiters)
    left = Counter(each.caller for each in waiters)
    served: Counter[str] = Counter()
    while (first := queue.pop()) is not None:
        served[first.caller] += 1
        left[first.caller] -= 1
        turns = [served[caller] for caller in left if left[caller]]
        assert not turns or max(served.values()) - min(turns) <= 1


def test_a_caller_that_asks_ten_times_as_much_is_served_no_more_often() -> None:
    queue = FairQueue()
    served: Counter[str] = Counter()
    for _ in range(500):
        for _ in range(10):
            queue.join(waiter("greedy"))
        queue.join(waiter("modest"))
        for _ in range(2):
            first = queue.pop()
            assert first is not None
            served[first.caller] += 1
    assert served == {"modest": 500, "greedy": 500}


def test_higher_priorities_go_first_and_lower_ones_are_not_forgotten() -> None:
    queue = FairQueue()
    low = [waiter("low", 0) for _ in range(5)]
    for each in low:
        queue.join(each)
    order = []
    for _ in range(40):
        queue.join(waiter("high", 5))
        queue.join(waiter("high", 5))
        order.append(queue.pop())
    served_low = [at for at, each in enumerate(order) if each in low]
    assert served_low == [10, 21, 32]
    assert served_low[0] == PASSED_MAX


def test_with_more_priorities_each_that_waits_has_its_turn() -> None:
    queue = filled(*[waiter(str(priority), priority) for priority in range(5) for _ in range(60)])
    served = Counter(each.priority for each in (queue.pop() for _ in range(60)) if each is not None)
    assert min(served[priority] for priority in range(5)) >= 60 // (PASSED_MAX + 4) - 1
    assert served[4] > 5 * served[0]


def test_what_is_sent_again_goes_first_unless_it_was_there_already() -> None:
    normal, again = waiter(priority=9), waiter(tried=["x"])
    queue = filled(normal, again)
    assert queue.place_of(again) == 1
    assert queue.place_of(normal) == 2
    assert queue.pop("x") is normal
    assert queue.pop("x") is None
    assert queue.pop("y") is again


def test_a_full_queue_makes_place_for_who_has_less_of_it() -> None:
    greedy = [waiter("greedy") for _ in range(10)]
    queue = filled(*greedy)
    assert queue.displaced_by(waiter("greedy"), count_max=10, bytes_max=100) is None
    gone = queue.displaced_by(waiter("modest"), count_max=10, bytes_max=100)
    assert gone == [greedy[-1]]
    for _ in range(30):
        modest = waiter("modest")
        gone = queue.displaced_by(modest, count_max=10, bytes_max=100)
        if gone is None:
            break
        for each in gone:
            queue.leave(each)
        queue.join(modest)
    assert Counter(each.caller for each in queue) == {"greedy": 5, "modest": 5}


def test_a_full_queue_makes_place_for_a_higher_priority_and_none_for_a_lower() -> None:
    queue = filled(*[waiter("a", 1) for _ in range(3)], waiter("b", 1))
    assert queue.displaced_by(waiter("c", 0), count_max=4, bytes_max=100) is None
    gone = queue.displaced_by(waiter("a", 2), count_max=4, bytes_max=100)
    assert [each.caller for each in gone or []] == ["a"]


def test_bytes_are_shared_as_places_are() -> None:
    queue = filled(*[waiter("greedy", size=30) for _ in range(3)])
    assert queue.displaced_by(waiter("greedy", size=30), count_max=10, bytes_max=100) is None
    assert len(queue.displaced_by(waiter("modest", size=20), count_max=10, bytes_max=100) or []) == 1
    assert queue.displaced_by(waiter("modest", size=70), count_max=10, bytes_max=100) is None
    assert queue.displaced_by(waiter("modest", size=10), count_max=10, bytes_max=100) == []
    assert filled().displaced_by(waiter("x", size=500), count_max=10, bytes_max=100) == []
