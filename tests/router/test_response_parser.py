"""An engine's answer is followed to its right end and handed on unchanged, however the bytes are split."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.router.dechunk import Dechunker
from llmgw.router.response_head import BadResponse
from llmgw.router.response_parser import ResponseParser

payloads = st.lists(
    st.binary(min_size=1, max_size=40) | st.sampled_from([b"\r\n", b"0\r\n\r\n", b"5\r\n"]), max_size=5
)
trailers = st.sampled_from([b"", b"x-t: 1\r\n", b"a: b\r\nc: d\r\n"])
extensions = st.sampled_from([b"", b";a=b", b' ; q="x"'])
preludes = st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n"])


def feed_split(parser: ResponseParser, wire: bytes, cuts: list[int]) -> list[bytes]:
    """Feed `wire` cut at the given places (modulo its length); returns what came out of each portion."""
    places = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    return [parser.feed(wire[a:b]) for a, b in itertools.pairwise(places)]


@settings(max_examples=150, deadline=None)
@given(payloads, trailers, extensions, preludes, st.lists(st.integers(0, 500), max_size=30))
def test_chunked_bodies_pass_unchanged(
    parts: list[bytes], trailer: bytes, extension: bytes, prelude: bytes, cuts: list[int]
) -> None:
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    body += b"0\r\n" + trailer + b"\r\n"
    parser, dechunker = ResponseParser(), Dechunker()
    out = feed_split(parser, prelude + b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body, cuts)
    assert b"".join(out) == body
    assert parser.reusable()
    assert b"".join(dechunker.feed(portion) for portion in out) == b"".join(parts)


@settings(max_examples=100, deadline=None)
@given(payloads, st.lists(st.integers(0, 500), max_size=30), st.integers(0, 400))
def test_a_cut_body_can_always_be_ended_properly(parts: list[bytes], cuts: list[int], cut: int) -> None:
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire = (head + body)[: len(head) + cut % len(body)]
    parser = ResponseParser()
    out = b"".join(feed_split(parser, wire, cuts))
    assert not parser.done
    left = parser.chunk_left
    assert left <= 2 or wire.endswith(out)
    mended = out + b"\n" * max(0, left - 2) + b"\r\n"[2 - min(left, 2) :] + b"3\r\nend\r\n0\r\n\r\n"
    check = ResponseParser()
    check.feed(head + mended)
    assert check.reusable()
    assert Dechunker().feed(mended).endswith(b"end")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=5), st.lists(st.integers(0, 200), max_size=20))
def test_bodies_with_a_length_end_where_they_say(body: bytes, excess: bytes, cuts: list[int]) -> None:
    parser = ResponseParser()
    wire = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    assert b"".join(feed_split(parser, wire + excess, cuts)) == body
    assert parser.done
    assert parser.reusable() == (not excess)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10), st.booleans())
def test_garbage_is_refused_or_waited_for_but_never_crashes(junk: bytes, cuts: list[int], chunked: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" if chunked else b""
    parser = ResponseParser()
    try:
        feed_split(parser, head + junk, cuts)
    except BadResponse:
        return
    assert not parser.excess or parser.done


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.0 200 OK\r\n\r\nabc") == b"abc"
    assert not parser.done
    assert parser.close()
    assert not parser.reusable()


@pytest.mark.parametrize("status", [204, 304])
def test_answers_that_have_no_body_end_with_their_head(status: int) -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 %d X\r\ncontent-length: 5\r\n\r\n" % status) == b""
    assert parser.reusable()


@pytest.mark.parametrize(
    "head",
    [
        b"<html>hello</html> and more",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx : 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: 1\n y: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: 1\r y: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: 1\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: \x0b b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8000000000000000\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1_0\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;" + b"x" * 300,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"a" * 70_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\nx: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: 1\n\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: 1\r\n folded\r\n\r\n",
    ],
    ids=lambda head: repr(head[:60]),
)
def test_what_is_no_answer_of_http_1_1_is_refused_with_a_sentence(head: bytes) -> None:
    with pytest.raises(BadResponse, match=r"\w+ \w+"):
        ResponseParser().feed(head)


@pytest.mark.parametrize(
    "portions",
    [
        [b"5\r\nhello", b"XX0\r\n\r\n"],
        [b"5\r\nhel", b"loXX0\r\n\r\n"],
        [b"5\r\nhello\r", b"X0\r\n\r\n"],
        [b"5\r\nhello\n"],
        [b"5\r\nhel", b"lo\n"],
        [b"5\r\nhello", b"\n"],
    ],
)
def test_a_chunk_that_comes_in_portions_ends_where_it_said_or_is_not_passed(portions: list[bytes]) -> None:
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    *good, bad = portions
    out = b"".join(map(parser.feed, good))
    with pytest.raises(BadResponse, match="does not end where it said"):
        parser.feed(bad)
    assert out == b"".join(good)


def test_an_engine_that_wants_to_close_is_not_asked_again_over_that_connection() -> None:
    for extra in (b"Connection: close\r\n", b"Transfer-Encoding: chunked\r\n"):
        parser = ResponseParser()
        parser.feed(b"HTTP/1.1 200 OK\r\n" + extra + b"Content-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        assert parser.done
        assert not parser.reusable()
