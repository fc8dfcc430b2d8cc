"""The queue keeps order, replaces what is only kept fresh, and drops nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmgw.server.store.queue import Write, WriteQueue


def taken(queue: WriteQueue, count: int = 1_000) -> list[Write]:
    return [write for _, write in queue.take(count)]


def test_writes_come_out_in_their_order() -> None:
    queue = WriteQueue()
    put = [Write() for _ in range(5)]
    for write in put:
        queue.add(write)
    assert taken(queue, 2) == put[:2]
    assert taken(queue) == put[2:]
    assert len(queue) == 0


def test_a_later_touch_replaces_an_earlier_one_and_takes_its_own_place() -> None:
    queue = WriteQueue()
    first, between, second = Write(touch="a"), Write(), Write(touch="a")
    for write in (first, between, second):
        queue.add(write)
    assert taken(queue) == [between, second]


def test_when_too_much_waits_the_oldest_touches_go_and_transitions_stay() -> None:
    queue = WriteQueue(waiting_max=4)
    touches = [Write(touch=name) for name in "abc"]
    transitions = [Write() for _ in range(5)]
    for write in [*touches, *transitions[:1]]:
        queue.add(write)
    assert not queue.behind
    queue.add(transitions[1])
    queue.add(transitions[2])
    assert taken(queue) == [touches[2], *transitions[:3]]
    for write in transitions:
        queue.add(write)
    assert queue.behind
    queue.add(Write(touch="d"))
    assert taken(queue) == transitions
    assert not queue.behind
    assert queue.dropped_touches == 3


def test_what_could_not_be_stored_goes_back_to_the_front() -> None:
    queue = WriteQueue()
    old = [Write(), Write(touch="a"), Write(touch="b"), Write()]
    for write in old:
        queue.add(write)
    out = queue.take(3)
    newer = Write(touch="a")
    queue.add(newer)
    queue.put_back(out)
    assert taken(queue) == [old[0], old[2], old[3], newer]


@given(st.lists(st.one_of(st.none(), st.sampled_from("abc"), st.integers(1, 5), st.just("back")), max_size=60))
def test_no_transition_is_lost_doubled_or_reordered_whatever_happens(steps: list[object]) -> None:
    queue = WriteQueue(waiting_max=6)
    put: list[Write] = []
    got: list[Write] = []
    for step in steps:
        if step is None:
            put.append(Write())
            queue.add(put[-1])
        elif isinstance(step, int):
            got += taken(queue, step)
        elif step == "back":
            queue.put_back(queue.take(3))
        else:
            queue.add(Write(touch=str(step)))
        waiting_touches = sum(write.touch is not None for write in queue._waiting.values())
        assert waiting_touches == len(queue._touches)
        assert waiting_touches <= 3
    got += taken(queue)
    assert [write for write in got if write.touch is None] == put
