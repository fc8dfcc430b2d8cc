"""What passes through a meter: every byte but the extra chunk's, wherever the engine's bytes are cut."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.router.dechunk import Dechunker
from llmgw.router.meters import EVENT_BYTES_MAX, HEAD_BYTES, KEPT_BYTES_MAX, StreamMeter, WholeMeter
from llmgw.router.response_head import ResponseHead
from llmgw.router.response_parser import ResponseParser
from llmgw.router.usage_figures import Tokens

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
FIGURES = {"prompt_tokens": 12, "total_tokens": 20, "completion_tokens": 8}
TOKENS = Tokens(12, None, 8)


def event(value: object, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + end


def token(text: str) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]})


EXTRA = event({"id": "c", "choices": [], "usage": FIGURES})
DONE = b"data: [DONE]\n\n"
STREAM = [token("a"), token('"usage":{ [] '), token("c\n\n\r\nd"), EXTRA, DONE]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Passing:
    """An answer on its way: the real parser, the meter, and what the client got."""

    def __init__(self, *, takes_out: bool = True) -> None:
        self.parser = ResponseParser()
        self.meter: StreamMeter | None = None
        self.head: ResponseHead | None = None
        self.takes_out = takes_out
        self.writes: list[bytes] = []

    def give(self, data: bytes) -> None:
        body = self.parser.feed(data)
        head = self.parser.head
        if head is None or not (body or self.parser.done):
            return
        self.pass_on(head, body, self.parser.done)

    def pass_on(self, head: ResponseHead, body: bytes, done: bool) -> None:
        if self.meter is None:
            self.head = head
            self.meter = StreamMeter(head, self.parser, takes_out=self.takes_out)
        self.writes.append(self.meter.feed(body, done))

    def end(self) -> None:
        assert self.parser.close()
        assert self.parser.head is not None
        self.pass_on(self.parser.head, b"", True)

    @property
    def got(self) -> bytes:
        return b"".join(self.writes)

    @property
    def payload(self) -> bytes:
        return Dechunker().feed(self.got)


def cut(wire: bytes, *places: int) -> list[bytes]:
    points = [0, *sorted(places), len(wire)]
    return [wire[a:b] for a, b in pairwise(points) if a < b]


def test_the_extra_chunk_is_taken_out_wherever_the_answer_is_cut_in_two() -> None:
    wire = CHUNKED + b"".join(map(chunk, STREAM)) + b"0\r\n\r\n"
    kept = b"".join(STREAM[:3]) + DONE
    for place in range(len(CHUNKED), len(wire)):
        passing = Passing()
        for part in cut(wire, place):
            passing.give(part)
        assert passing.payload == kept, place
        assert passing.got.endswith(b"0\r\n\r\n")
        assert passing.meter is not None
        assert (passing.meter.tokens, passing.meter.told_all) == (TOKENS, True)


def test_the_extra_chunk_is_taken_out_when_the_engines_chunks_cut_it_and_come_together() -> None:
    kept = b"".join(STREAM[:3]) + DONE
    for first in range(1, len(EXTRA) - 1):
        for second in range(first + 1, min(first + 12, len(EXTRA))):
            passing = Passing()
            parts = b"".join(map(chunk, cut(EXTRA, first, second)))
            for part in [CHUNKED, *map(chunk, STREAM[:3]), parts, chunk(DONE) + b"0\r\n\r\n"]:
                passing.give(part)
            assert passing.payload == kept, (first, second)


def test_what_comes_an_event_a_chunk_passes_as_it_came() -> None:
    passing = Passing()
    wire = [CHUNKED, *map(chunk, STREAM), b"0\r\n\r\n"]
    for part in wire:
        passing.give(part)
    assert passing.got == b"".join([*map(chunk, STREAM[:3]), chunk(DONE), b"0\r\n\r\n"])


events = st.lists(
    st.one_of(
        st.text(max_size=30).map(token),
        st.just(b": ping\n\n"),
        st.just(event({"choices": [{"delta": {}}], "usage": None})),
        st.just(event({"choices": [], "prompt_filter_results": []})),
        st.just(b"event: x\r\ndata: {}\r\n\r\n"),
        st.just(b"data: no json\r\r"),
        st.just(event({"choices": [{"text": "y" * 600}], "usage": FIGURES})),
        st.just(b"data: {" + b"z" * (EVENT_BYTES_MAX + 10) + b"}\n\n"),
    ),
    max_size=6,
)
extras = st.sampled_from(
    [
        EXTRA,
        event({"choices": [], "usage": FIGURES}, b"\r\n\r\n"),
        b'data:{"usage": {"prompt_tokens": 12, "completion_tokens": 8}, "choices": []}\r\r',
        b'event: message\ndata: {"choices": [ ],\ndata: "usage": {"prompt_tokens":12,"completion_tokens":8}}\n\n',
    ]
)


@settings(max_examples=400, deadline=None)
@given(events, extras, st.data())
def test_any_framing_and_any_cuts_keep_every_byte_but_the_extra_chunks(
    before: list[bytes], extra: bytes, data: st.DataObject
) -> None:
    body = b"".join([*before, extra, DONE])
    chunks = cut(body, *data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    wire = CHUNKED + b"".join(map(chunk, chunks)) + b"0\r\n\r\n"
    passing = Passing()
    for part in cut(wire, *data.draw(st.lists(st.integers(0, len(wire)), max_size=12))):
        passing.give(part)
        if passing.meter is not None:
            # Whatever happens now, the client's side can be ended: it stands between two chunks.
            shadow = ResponseParser()
            shadow.feed(CHUNKED + passing.got)
            assert shadow.done or shadow.chunk_left == 0
    assert passing.payload == b"".join([*before, DONE])
    assert passing.meter is not None
    assert passing.meter.tokens is not None
    assert (passing.meter.tokens.prompt, passing.meter.tokens.completion) == (12, 8)


@settings(max_examples=100, deadline=None)
@given(events, st.data())
def test_a_client_that_asked_itself_gets_every_byte_as_it_came(before: list[bytes], data: st.DataObject) -> None:
    body = b"".join([*before, EXTRA, DONE])
    wire = b"".join(map(chunk, cut(body, *data.draw(st.lists(st.integers(0, len(body)), max_size=6)))))
    wire = CHUNKED + wire + b"0\r\nx-trailer: 1\r\n\r\n"
    passing = Passing(takes_out=False)
    for part in cut(wire, *data.draw(st.lists(st.integers(0, len(wire)), max_size=12))):
        passing.give(part)
    assert passing.got == wire[len(CHUNKED) :]
    assert passing.meter is not None
    assert passing.meter.tokens == TOKENS


def test_a_stream_without_framing_or_with_a_length_loses_the_extra_chunk_too() -> None:
    body = b"".join(STREAM)
    kept = b"".join(STREAM[:3]) + DONE
    for place in range(1, len(body), 7):
        open_ended = Passing()
        for part in cut(HEAD + b"\r\n" + body, len(HEAD) + 2 + place):
            open_ended.give(part)
        open_ended.end()
        assert open_ended.got == kept
        measured = Passing()
        for part in cut(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body, len(HEAD) + 25 + place):
            measured.give(part)
        assert measured.payload == kept
        assert measured.head is not None
        assert measured.head.framing == "chunked", "the length is not true any more"


def test_an_event_that_is_not_whole_is_not_waited_for_when_it_cannot_be_the_extra_chunk() -> None:
    passing = Passing()
    passing.give(CHUNKED + chunk(token("a")) + b"40\r\ndata: 1")
    assert passing.payload == token("a") + b"data: 1"
    passing = Passing()
    passing.give(CHUNKED + chunk(token("a")) + b"fffff\r\ndata: {" + b"x" * (EVENT_BYTES_MAX + 1))
    assert passing.payload.endswith(b"x")


def test_the_stream_of_anthropics_api_tells_of_the_prompt_first_and_of_the_answer_last() -> None:
    start = {"message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1}}}
    wire = [
        b"event: message_start\n" + event({"type": "message_start", **start}),
        b"event: content_block_delta\n" + event({"delta": {"text": "x"}}),
        b"event: message_delta\n" + event({"delta": {}, "usage": {"output_tokens": 15}}),
        b"event: message_stop\n" + event({"type": "message_stop"}),
    ]
    for parts in ([CHUNKED, *map(chunk, wire), b"0\r\n\r\n"], [CHUNKED + chunk(b"".join(wire)) + b"0\r\n\r\n"]):
        passing = Passing(takes_out=False)
        for part in parts:
            passing.give(part)
        assert passing.meter is not None
        assert passing.meter.tokens == Tokens(13, 4, 15)


@pytest.mark.parametrize("merged", [1, 3])
def test_events_are_counted_by_their_size_when_they_only_pass(merged: int) -> None:
    passing = Passing()
    passing.give(CHUNKED)
    for _ in range(60):
        passing.give(chunk(token("word")) * merged)
    assert passing.meter is not None
    assert abs(passing.meter.events - 60 * merged) <= 6 * merged


def whole(*parts: bytes, framing: str = "length") -> WholeMeter:
    meter = WholeMeter(framing == "chunked")
    for part in parts:
        assert meter.feed(part, False) is part
    return meter


@pytest.mark.parametrize("size", [100, 5_000, 70_000, 300_000])
@pytest.mark.parametrize("usage_first", [True, False])
def test_usage_is_found_before_and_behind_whatever_an_embedding_has(size: int, usage_first: bool) -> None:
    figures = b'"usage":{"prompt_tokens":7,"total_tokens":7}'
    data = b'"data":[' + b"0.125," * 200_000 + b"1]"
    body = b"{" + (figures + b"," + data if usage_first else data + b"," + figures) + b"}"
    meter = whole(*(body[at : at + size] for at in range(0, len(body), size)))
    assert meter.found() == Tokens(7, None, None)
    assert sum(map(len, meter._pieces)) <= KEPT_BYTES_MAX + 300_000
    assert len(meter._head) <= HEAD_BYTES


def test_an_answer_in_chunks_that_cut_its_usage_is_read() -> None:
    body = b'{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":8}}'
    for place in range(len(body)):
        framed = chunk(body[:place]) + chunk(body[place:]) if place else chunk(body)
        meter = whole(framed, b"0\r\n\r\n", framing="chunked")
        assert meter.found() == TOKENS, place


RECORDED = Path(os.environ.get("LLMGW_SHARED", Path(__file__).parents[3] / "shared")) / "engines" / "http"


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recordings are not here")
@pytest.mark.parametrize(
    ("file", "tokens", "taken_out"),
    [
        ("vllm/chat-stream-usage.txt", Tokens(12, None, 8), 1),
        ("vllm/completions-stream.txt", Tokens(2, None, 4), 1),
        ("sglang/chat-stream-usage.txt", Tokens(12, None, 8), 1),
        ("sglang/completions-stream.txt", Tokens(2, None, 4), 1),
        ("llamacpp/chat-stream-usage.txt", Tokens(25, 20, 8), 1),
        ("llamacpp/completions-stream.txt", Tokens(2, 1, 4), 0),
    ],
)
def test_recorded_streams_lose_their_extra_chunk_and_nothing_else(
    file: str, tokens: Tokens, taken_out: int
) -> None:
    text = (RECORDED / file).read_bytes().replace(b"\r\n", b"\n").split(b"\n\n", 1)[1]
    sent = [part + b"\n\n" for part in text.strip().split(b"\n\n")]
    passing = Passing()
    for part in [CHUNKED, *map(chunk, sent), b"0\r\n\r\n"]:
        passing.give(part)
    kept = [part for part in sent if b'"choices":[],' not in part]
    assert passing.got == b"".join(map(chunk, kept)) + b"0\r\n\r\n"
    assert len(sent) - len(kept) == taken_out
    assert passing.meter is not None
    assert passing.meter.tokens == tokens


def test_an_extra_chunk_whose_name_is_split_by_the_framing_is_found_within_one_read() -> None:
    passing = Passing()
    passing.give(CHUNKED + chunk(token("a")))
    at = EXTRA.index(b'"usage"') + 3
    passing.give(chunk(EXTRA[:at]) + chunk(EXTRA[at:]) + chunk(DONE))
    passing.give(b"0\r\n\r\n")
    assert passing.payload == token("a") + DONE
    assert passing.meter is not None
    assert passing.meter.tokens == TOKENS


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_a_stream_of_whole_events_keeps_its_framing_wherever_it_is_cut(size: int) -> None:
    kept = b"".join(chunk(token(str(i))) for i in range(50))
    wire = kept + chunk(EXTRA) + chunk(DONE) + b"0\r\n\r\n"
    passing = Passing()
    passing.give(CHUNKED + wire[:1])
    for start in range(1, len(wire), size):
        passing.give(wire[start : start + size])
    assert passing.got[: len(kept)] == kept
    assert passing.payload == Dechunker().feed(kept) + DONE
    assert passing.meter is not None
    assert passing.meter.tokens == TOKENS


def test_a_line_end_that_is_a_chunk_of_its_own_is_no_event() -> None:
    parser = ResponseParser()
    parser.feed(CHUNKED)
    assert parser.head is not None
    meter = StreamMeter(parser.head, parser, takes_out=True)
    reads = (b"1\r\n\n\r\n", b"1\r\n\n\r\n9\r\ndata: 1\n\n\r\n", b"0\r\n\r\n")
    told = [meter.feed(parser.feed(data), parser.done) for data in reads]
    assert not parser.whole_events
    assert Dechunker().feed(b"".join(told)) == b"\n\ndata: 1\n\n"


def test_a_whole_answer_is_judged_by_its_own_chunks_also_when_its_connection_serves_again() -> None:
    parser = ResponseParser()
    cut_in_two = b"2\r\nda\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(EXTRA) - 2, EXTRA[2:])
    body = parser.feed(CHUNKED + cut_in_two)
    assert parser.head is not None
    meter = StreamMeter(parser.head, parser, takes_out=True)
    parser.reset()
    assert Dechunker().feed(meter.feed(body, True)) == b""
    assert meter.tokens == TOKENS
