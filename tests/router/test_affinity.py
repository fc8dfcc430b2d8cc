"""Conversations keep their endpoint, endpoints their share. No sockets, no clock."""

from __future__ import annotations

import json
import math
import random
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from llmgw.messages.routes import RouteEndpoint
from llmgw.router.affinity import SHARE_MAX, Ring, conversation_point, point_of
from llmgw.router.breaker import FAILURES_TO_OPEN
from llmgw.router.choice import Pool, share_capacity
from llmgw.router.endpoint import Endpoint
from llmgw.router.fields import read_fields

SYSTEM = {"role": "system", "content": 'You are {"a"} helpful assistant. ' * 40}


def endpoints(*concurrency: int | None) -> list[Endpoint]:
    these = [
        Endpoint(
            RouteEndpoint(id=f"e{index}", host="10.0.0.1", port=8000, concurrency=limit),
            idle_limit_s=4.0,
            now=-math.inf,
        )
        for index, limit in enumerate(concurrency)
    ]
    share_capacity(these)
    return these


def point(messages: object = None, **fields: bytes) -> int | None:
    text = b"" if messages is None else json.dumps(messages).encode()
    return conversation_point(**{"session": b"", "user": b"", "messages": text, "prompt": b"", **fields})


def point_of_body(body: bytes) -> int | None:
    return point_of(read_fields(body, b"application/json"), b"")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_all_turns_of_a_conversation_stand_at_one_point_whatever_comes_behind_its_first_question() -> None:
    opening = [SYSTEM, user("why?")]
    first = point(opening)
    said = {"content": 'because of "},{" and }', "role": "assistant", "tool_calls": [{"role": "user"}]}
    assert first is not None
    assert point([*opening, said, user("and then?")]) == first
    assert point([*opening, said, user("and then?"), said, user("x" * 100_000)]) == first


def test_conversations_that_share_a_system_prompt_stand_apart() -> None:
    points = {point([SYSTEM, user(f"question {number}")]) for number in range(200)}
    assert len(points) == 200


def test_parts_images_and_odd_spellings_of_the_first_question_are_read_to_its_end() -> None:
    parts = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "x" * 5000}}, {"text": "ü\\n"}],
    }
    assert point([parts]) == point([parts, {"role": "assistant", "content": ""}])
    assert point([parts]) != point([{**parts, "content": parts["content"][:1]}])
    for text in (b'[ {"role" : "us\\u0065r", "content":"a"}', b'[{"content":"\\"a\\"","role":"user"}'):
        assert point(messages=None, prompt=b"") is None
        turns = [
            conversation_point(session=b"", user=b"", messages=text + end, prompt=b"")
            for end in (b" ]", b' , {"role":"assistant"}]')
        ]
        assert turns[0] == turns[1]


def test_a_session_is_enough_and_users_tell_equal_openings_apart() -> None:
    opening = [user("hello")]
    assert point(opening, session=b"s1") == point([user("other")], session=b"s1", user=b'"u"')
    assert point(opening, session=b"s1") != point(opening, session=b"s2")
    assert point(opening, user=b'"a"') != point(opening, user=b'"b"')
    assert point(user=b'"a"') is not None
    assert point() is None


def test_a_prompt_that_grows_behind_its_first_block_stays() -> None:
    block = b'"' + b"once upon a time " * 80
    assert point(prompt=block + b'"') == point(prompt=block + b' and then"')


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_messages_have_a_point(messages: bytes, headroom: int) -> None:
    found = conversation_point(session=b"", user=b"", messages=messages, prompt=b"", headroom=headroom)
    assert found is None if not messages else found is not None
    if found is not None:
        assert 0 <= found < 2**64


@pytest.mark.parametrize(
    "messages", [b"null", b"7", b'"text"', b"{}", b"[]", b"[7,null]", b"[" * 3000 + b"]" * 3000]
)
def test_messages_that_are_none_are_told_by_their_first_bytes(messages: bytes) -> None:
    assert conversation_point(session=b"", user=b"", messages=messages, prompt=b"") is not None


_texts = st.text(max_size=20) | st.just("y" * 1500) | st.just('"},{"role":"user"}]')
_contents = _texts | st.lists(st.fixed_dictionaries({"type": _texts, "text": _texts}), max_size=3)
_messages = st.builds(
    lambda role, content, last, more: {
        **more,
        **({"content": content, "role": role} if last else {"role": role}),
    },
    st.sampled_from(["system", "assistant", "user", None, 1, ["user"], {"role": "user"}]),
    _contents,
    st.booleans(),
    st.just({}) | st.just({"messages": [{"role": "user"}], "x": {"role": "user"}}),
)
_KEYS = st.sampled_from(['"messages"', '"m\\u0065ssages"', '"\\u006d\\u0065ssages"'])


@given(
    st.lists(_messages | _texts | st.integers() | st.none() | st.lists(_texts, max_size=2), max_size=5),
    st.lists(_messages, max_size=4),
    _KEYS,
    st.sampled_from([",", " , ", ",\n\t"]),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_conversation_stands_where_its_messages_up_to_the_first_users_put_it(
    messages: list[object], later: list[object], key: str, comma: str, ascii_only: bool
) -> None:
    def body(messages: list[object]) -> bytes:
        texts = [json.dumps(each, ensure_ascii=ascii_only) for each in messages]
        hidden = '"metadata":{"messages":[{"role":"user","content":"no"}]},"messages":[7]'
        return f'{{"model":"m",{hidden},{key}: [ {comma.join(texts)} ]}}'.encode("utf-8", "replace")

    users = [isinstance(each, dict) and each.get("role") == "user" for each in messages]
    if True not in users:
        assert point_of_body(body(messages)) is not None
        return
    opening = messages[: users.index(True) + 1]
    expected = point_of_body(body(opening))
    assert point_of_body(body([*messages, *later])) == expected
    assert point_of_body(body([*opening, *later, "z" * 5000])) == expected
    other = [*opening[:-1], {"role": "user", "content": "something that is drawn by nothing"}]
    assert point_of_body(body(other)) != expected


def test_a_conversation_in_a_broken_coding_keeps_its_point_as_it_grows() -> None:
    def grown(size: int) -> int | None:
        messages = b'[{"role":"user","content":"\xff\xfe"},"%b"]' % (b"z" * size)
        return conversation_point(session=b"", user=b"", messages=messages, prompt=b"")

    assert grown(5) == grown(5000)


def test_nothing_that_is_called_null_is_still_nothing() -> None:
    def stands(**named: object) -> int | None:
        return point_of_body(json.dumps({"model": "m", **named}).encode())

    nothing = {"messages": None, "prompt": None, "input": None, "user": None}
    assert stands(**nothing) is None
    assert stands(**nothing | {"input": "a"}) == stands(input="a")
    assert stands(**nothing | {"prompt": "a"}) == stands(prompt="a")
    assert stands(**nothing | {"messages": [user("a")]}) == stands(messages=[user("a")])
    assert stands(input="a") != stands(input="b")


def test_points_are_the_same_in_every_router() -> None:
    assert point([user("hello")]) == 1048452923429580607, "another figure moves all conversations once"
    one, two = Ring(endpoints(*[None] * 8)), Ring(endpoints(*[None] * 8))
    for at in range(0, 2**64, 2**58):
        a, b = one.find(at, 0.0, []), two.find(at, 0.0, [])
        assert a is not None
        assert b is not None
        assert a.id == b.id


capacities = st.lists(st.integers(1, 64), min_size=2, max_size=10)


@settings(max_examples=100, deadline=None)
@given(capacities, st.lists(st.integers(0, 5), min_size=1, max_size=300), st.randoms(use_true_random=False))
def test_no_endpoint_gets_more_than_its_share_and_a_quarter(
    limits: list[int], conversations: list[int], generator: random.Random
) -> None:
    these = endpoints(*limits)
    for each in these:
        each.concurrency = math.inf
    ring = Ring(these)
    running: list[Endpoint] = []
    for conversation in conversations:
        while running and generator.random() < 0.3:
            running.pop(generator.randrange(len(running))).end(False)
        chosen = ring.find(point([user(str(conversation))]) or 0, 0.0, [])
        assert chosen is not None
        chosen.begin(0.0)
        running.append(chosen)
        share = len(running) * chosen.capacity / sum(each.capacity for each in these)
        assert chosen.outstanding <= math.ceil(SHARE_MAX * share)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.data())
def test_the_usable_and_untried_are_found_and_nothing_else(count: int, data: st.DataObject) -> None:
    these = endpoints(*[2] * count)
    fates = data.draw(
        st.lists(st.sampled_from(["good", "broken", "full", "tried"]), min_size=count, max_size=count)
    )
    for each, fate in zip(these, fates, strict=True):
        if fate == "broken":
            for _ in range(FAILURES_TO_OPEN):
                each.failed(0.0, False)
        elif fate == "full":
            each.outstanding = 2
    tried = [each for each, fate in zip(these, fates, strict=True) if fate == "tried"]
    found = Ring(these).find(data.draw(st.integers(0, 2**64 - 1)), 0.0, tried)
    good = [each for each, fate in zip(these, fates, strict=True) if fate == "good"]
    assert found in good if good else found is None


def test_an_idle_ring_sends_a_conversation_to_one_place_and_spreads_them_by_capacity() -> None:
    these = endpoints(10, 10, 20, 40)
    ring = Ring(these)
    points = [point([SYSTEM, user(f"question {number}")]) or 0 for number in range(4000)]
    homes = [ring.find(at, 0.0, []) for at in points]
    assert homes == [ring.find(at, 0.0, []) for at in points]
    counts = Counter(homes)
    for each in these:
        assert 0.6 < counts[each] / (4000 * each.capacity / 80) < 1.4


def test_an_endpoint_that_leaves_moves_only_its_own_conversations() -> None:
    these = endpoints(*[None] * 8)
    points = [point([user(str(number))]) or 0 for number in range(1000)]
    before = [Ring(these).find(at, 0.0, []) for at in points]
    after = [Ring(these[:-1]).find(at, 0.0, []) for at in points]
    moved = [one for one, two in zip(before, after, strict=True) if one is not two]
    assert set(moved) == {these[-1]}
    assert 60 < len(moved) < 200


def test_a_pool_follows_its_ring_and_falls_back_to_the_least_bad_one() -> None:
    these = endpoints(None, None, None)
    pool = Pool(these, Ring(these))
    home = pool.choose(0.0, [], random.random, 7)
    assert home is not None
    assert {pool.choose(0.0, [], random.random, 7) for _ in range(20)} == {home}
    assert len({pool.choose(0.0, [], random.random, None) for _ in range(100)}) == 3
    other = pool.choose(0.0, [home], random.random, 7)
    assert other not in (None, home)
    for index, each in enumerate(these):
        for _ in range(FAILURES_TO_OPEN):
            each.failed(float(index), False)
    assert pool.choose(2.0, [], random.random, 7) is these[0]
