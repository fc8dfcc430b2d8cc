"""Chat completions of engines, told as Anthropic's messages: whole, and as streams that are split anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.router.anthropic.answer import to_count, to_message
from llmgw.router.anthropic.stream import StreamFilter
from llmgw.router.errors import ApiError
from llmgw.router.event_stream import EVENT_BYTES_MAX, EventReader
from llmgw.router.filters import BadAnswer

Event = tuple[str, dict[str, Any]]


def completion(message: dict[str, Any], reason: str | None = "stop", **more: Any) -> bytes:
    usage = {
        "prompt_tokens": 25,
        "completion_tokens": 4,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 20},
    }
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason, **more}
    return json.dumps({"id": "c1", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def message(body: bytes, stops: list[str] | None = None) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(to_message(body, "asked-for", stops or []))
    return told


def call(name: str, arguments: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def test_a_message_says_who_what_why_and_what_it_cost() -> None:
    assert message(completion({"content": "hi"})) == {
        "id": "msg_c1",
        "type": "message",
        "role": "assistant",
        "model": "asked-for",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 20,
            "output_tokens": 4,
        },
    }


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_what_the_model_thought_stands_before_what_it_said(key: str) -> None:
    content = message(completion({key: "hm", "content": "hi"}))["content"]
    assert [block["type"] for block in content] == ["thinking", "text"]
    assert content[0] == {"type": "thinking", "thinking": "hm", "signature": ""}


def test_calls_of_tools_follow_with_their_arguments_as_objects() -> None:
    calls = [call("f", '{"a": [1, 2.50]}', id="x"), call("g", ""), call("h", '{"a": "cut o', id="y")]
    told = message(completion({"content": None, "tool_calls": calls}, "stop"))
    assert told["stop_reason"] == "tool_use"
    assert told["content"] == [
        {"type": "tool_use", "id": "x", "name": "f", "input": {"a": [1, 2.5]}},
        {"type": "tool_use", "id": "toolu_c1_1", "name": "g", "input": {}},
        {"type": "tool_use", "id": "y", "name": "h", "input": {"INVALID_JSON": '{"a": "cut o'}},
    ]


@pytest.mark.parametrize(
    ("reason", "more", "expected"),
    [
        ("stop", {}, ("end_turn", None)),
        ("length", {}, ("max_tokens", None)),
        ("tool_calls", {}, ("tool_use", None)),
        ("content_filter", {}, ("refusal", None)),
        ("something new", {}, ("end_turn", None)),
        ("stop", {"stop_reason": "END"}, ("stop_sequence", "END")),
        ("stop", {"matched_stop": "END"}, ("stop_sequence", "END")),
        ("stop", {"stop_reason": 151645}, ("end_turn", None)),
        ("stop", {"matched_stop": "<|im_end|>"}, ("end_turn", None)),
    ],
)
def test_why_it_ended(reason: str, more: dict[str, Any], expected: tuple[str, str | None]) -> None:
    told = message(completion({"content": "x"}, reason, **more), ["END"])
    assert (told["stop_reason"], told["stop_sequence"]) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":[{"index":0}]}',
        b'{"choices":[{"message":{"content":7},"finish_reason":"stop"}]}',
        completion({"content": "half"}, "abort"),
        completion({"content": "half"}, None),
        b'{"choices":' + b"[" * 5000,
    ],
)
def test_what_is_no_completion_is_not_made_one(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        to_message(body, "m", [])


def test_tokens_are_counted_by_the_engine_or_not_at_all() -> None:
    assert json.loads(to_count(b'{"count":12,"max_model_len":512,"tokens":[1]}')) == {"input_tokens": 12}
    with pytest.raises(BadAnswer):
        to_count(b'{"tokens":[]}')  # llama.cpp's, which knows nothing of messages


# Streams.


def chunks(*deltas: dict[str, Any], reason: str | None = "stop", usage: bool = True, **more: Any) -> bytes:
    out: list[dict[str, Any]] = [
        {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in [{"role": "assistant", "content": ""}, *deltas]
    ]
    if reason is not None:
        out.append({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": reason, **more}]})
    if usage:
        out.append({"id": "c1", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    return b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in out) + b"data: [DONE]\n\n"


def events(raw: bytes) -> list[Event]:
    """Anthropic's events, pings left out."""
    found = []
    for block in raw.decode().split("\n\n"):
        if block:
            name, data = block.split("\n")
            told = json.loads(data.removeprefix("data: "))
            assert name == f"event: {told['type']}"
            if told["type"] != "ping":
                found.append((told.pop("type"), told))
    return found


def stream(raw: bytes, sizes: list[int] | None = None) -> list[Event]:
    filter = StreamFilter("asked-for", ["END"], b"req-1")
    out = b""
    at = 0
    for size in [*(sizes or []), len(raw)]:
        if raw[at : at + size]:
            out += filter.feed(raw[at : at + size])
        at += size
    return events(out + filter.end())


EVERYTHING = chunks(
    {"reasoning_content": "h"},
    {"reasoning_content": "m"},
    {"content": "I "},
    {"content": "loök"},
    {"tool_calls": [{"index": 0, **call("f", "", id="x")}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]},
    {"tool_calls": [{"index": 1, **call("g", "{}")}]},
    reason="tool_calls",
)


def test_a_stream_has_every_block_with_its_start_parts_and_stop() -> None:
    told = stream(EVERYTHING)
    assert told[0][1]["message"]["model"] == "asked-for"
    assert told[1:] == [
        (
            "content_block_start",
            {"index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        ),
        ("content_block_delta", {"index": 0, "delta": {"type": "thinking_delta", "thinking": "h"}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "thinking_delta", "thinking": "m"}}),
        ("content_block_stop", {"index": 0}),
        ("content_block_start", {"index": 1, "content_block": {"type": "text", "text": ""}}),
        ("content_block_delta", {"index": 1, "delta": {"type": "text_delta", "text": "I "}}),
        ("content_block_delta", {"index": 1, "delta": {"type": "text_delta", "text": "loök"}}),
        ("content_block_stop", {"index": 1}),
        (
            "content_block_start",
            {"index": 2, "content_block": {"type": "tool_use", "id": "x", "name": "f", "input": {}}},
        ),
        ("content_block_delta", {"index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a'}}),
        ("content_block_delta", {"index": 2, "delta": {"type": "input_json_delta", "partial_json": '":1}'}}),
        ("content_block_stop", {"index": 2}),
        (
            "content_block_start",
            {"index": 3, "content_block": {"type": "tool_use", "id": "toolu_c1_1", "name": "g", "input": {}}},
        ),
        ("content_block_delta", {"index": 3, "delta": {"type": "input_json_delta", "partial_json": "{}"}}),
        ("content_block_stop", {"index": 3}),
        (
            "message_delta",
            {
                "delta": {"stop_reason": "tool_use", "stop_sequence": None},
                "usage": {
                    "input_tokens": 7,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 0,
                    "output_tokens": 2,
                },
            },
        ),
        ("message_stop", {}),
    ]


def test_it_is_the_same_wherever_the_bytes_are_split() -> None:
    whole = stream(EVERYTHING)
    for size in range(1, 40):
        assert stream(EVERYTHING, [size] * (len(EVERYTHING) // size)) == whole


@given(sizes=st.lists(st.integers(1, 200), max_size=60))
def test_it_is_the_same_in_whatever_portions(sizes: list[int]) -> None:
    other_ends = EVERYTHING.replace(b"\n", b"\r\n")
    assert stream(EVERYTHING, sizes) == stream(EVERYTHING) == stream(other_ends, sizes)


def test_a_stream_ends_without_done_when_the_engine_said_why() -> None:
    raw = chunks({"content": "x"}, usage=False).removesuffix(b"data: [DONE]\n\n")
    assert [kind for kind, _ in stream(raw)][-2:] == ["message_delta", "message_stop"]


def test_a_stop_sequence_is_named_in_a_stream() -> None:
    told = dict(stream(chunks({"content": "x"}, stop_reason="END")))
    assert told["message_delta"]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


def test_other_choices_than_the_first_are_left_out() -> None:
    other = b'data: {"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"stop"}]}\n\n'
    assert stream(other + chunks({"content": "x"}))[1:] == stream(chunks({"content": "x"}))[1:]


def test_the_engines_signs_of_life_become_pings() -> None:
    filter = StreamFilter("m", [], b"r")
    assert filter.feed(b":\n\n") == b""
    assert filter.feed(chunks({"content": "x"})[:70] + b"") == b""
    filter = StreamFilter("m", [], b"r")
    filter.feed(b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n')
    assert filter.feed(b": keepalive\n\n") == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_an_error_in_the_engines_stream_is_the_last_event() -> None:
    broken = chunks({"content": "x"}, reason=None, usage=False).removesuffix(b"data: [DONE]\n\n")
    error = b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'
    told = stream(broken + error + b"data: [DONE]\n\n")
    assert told[-1] == (
        "error",
        {"error": {"type": "api_error", "message": "EngineCore died"}, "request_id": "req-1"},
    )
    assert "message_stop" not in dict(told)


@pytest.mark.parametrize(
    "raw",
    [
        chunks({"content": "half"}, reason=None),
        chunks({"content": "half"}, reason="abort"),
        chunks({"content": "half"}, reason=None, usage=False).removesuffix(b"data: [DONE]\n\n"),
        b"data: nonsense\n\n",
        b"data: " + b"[" * 5000 + b"\n\n",
        b'data: {"choices":[{"delta":{"content":7}}]}\n\n',
        chunks({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
        chunks(*({"tool_calls": [{"index": at, **call("f", "{}", id="x")}]} for at in (0, 1, 0))),
        b"",
        b"data: [DONE]\n\n",
    ],
)
def test_a_stream_that_is_none_is_not_passed_off_as_one(raw: bytes) -> None:
    with pytest.raises(BadAnswer):
        stream(raw)


def test_a_stream_that_breaks_ends_with_an_error_event_and_only_once() -> None:
    filter = StreamFilter("m", [], b"r")
    filter.feed(b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n')
    error = ApiError(502, "it broke", type="server_error")
    ((kind, told),) = events(filter.broken(error))
    assert (kind, told["error"]) == ("error", {"type": "api_error", "message": "it broke"})
    assert filter.broken(error) == filter.feed(chunks()) == filter.end() == b""


def test_an_event_has_a_limit() -> None:
    reader = EventReader()
    line = b"data: " + b"x" * 65536 + b"\n"
    for _ in range(EVENT_BYTES_MAX // 65536):
        reader.feed(line)
    with pytest.raises(ValueError, match="more than"):
        reader.feed(line)
    with pytest.raises(BadAnswer):
        StreamFilter("m", [], b"r").feed(b"x" * (EVENT_BYTES_MAX + 1))


def test_events_of_several_lines_are_joined_and_other_fields_skipped() -> None:
    reader = EventReader()
    assert reader.feed(b"event: x\nid: 1\ndata: a\ndata:b\n\n: hi\ndata\n\ndata: c\r\n\r\n") == [b"a\nb", b"c"]
    assert reader.comments == 1
