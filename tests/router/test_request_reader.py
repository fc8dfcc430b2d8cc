"""Requests are read the same however their bytes are split, and nothing is kept that is not accounted for."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.router.errors import ApiError
from llmgw.router.limits import HEAD_BYTES_MAX, PIPELINED_MAX
from llmgw.router.request import Request
from llmgw.router.request_reader import BodyBudget, RequestReader

BODY_BYTES_MAX = 2000
bodies = st.lists(st.binary(max_size=60), min_size=1, max_size=5)
cuts_of = st.lists(st.integers(0, 2000), max_size=40)


def reader(budget: BodyBudget) -> RequestReader:
    return RequestReader(body_bytes_max=BODY_BYTES_MAX, budget=budget, may_go_on=lambda: None)


def feed_split(to: RequestReader, wire: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        to.feed(wire[start:end])


def as_bytes(number: int, body: bytes, offer: bool) -> bytes:
    head = b"POST /v1/x%d HTTP/1.1\r\nHost: gw\r\nX-N: %d\r\n" % (number, number)
    if offer:
        head += b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    if number % 2:
        chunks = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@settings(max_examples=150, deadline=None)
@given(bodies, cuts_of, st.booleans())
def test_any_split_gives_the_same_requests(parts: list[bytes], cuts: list[int], offer: bool) -> None:
    budget = BodyBudget(10**6)
    read = reader(budget)
    feed_split(read, b"".join(as_bytes(number, body, offer) for number, body in enumerate(parts)), cuts)
    requests = [item for item in read.queue if isinstance(item, Request)]
    assert [(item.path, item.body) for item in requests] == [
        (f"/v1/x{number}", body) for number, body in enumerate(parts)
    ]
    assert budget.held == sum(map(len, parts))
    read.close()
    assert budget.held == 0


@settings(max_examples=60, deadline=None)
@given(bodies, cuts_of, st.booleans())
def test_a_large_body_is_read_whole_and_what_follows_it_too(
    parts: list[bytes], cuts: list[int], offer: bool
) -> None:
    budget = BodyBudget(10**6)
    read = RequestReader(body_bytes_max=10**6, budget=budget, may_go_on=lambda: None)
    large = bytes(range(256)) * 1024
    wire = as_bytes(0, large, offer) + b"".join(
        as_bytes(number, body, offer) for number, body in enumerate(parts)
    )
    feed_split(read, wire, [cut * 131 for cut in cuts])
    requests = [item for item in read.queue if isinstance(item, Request)]
    assert [(item.path, item.body) for item in requests] == [
        (f"/v1/x{number}", body) for number, body in [(0, large), *enumerate(parts)]
    ]
    assert budget.held == len(large) + sum(map(len, parts))
    read.close()
    assert budget.held == 0


def test_a_large_body_that_no_memory_is_left_for_is_refused_while_it_comes() -> None:
    budget = BodyBudget(100_000)
    read = RequestReader(body_bytes_max=10**6, budget=budget, may_go_on=lambda: None)
    head = b"POST /v1/x HTTP/1.1\r\nHost: gw\r\nContent-Length: 400000\r\n\r\n"
    for part in (head, *[b"x" * 40_000] * 10):
        read.feed(part)
    [refused] = read.queue
    assert isinstance(refused, ApiError)
    assert refused.status == 503
    assert budget.held == 0


@settings(max_examples=200, deadline=None)
@given(bodies, cuts_of, st.binary(max_size=80), st.integers(0, 600), st.integers(0, 600))
def test_damaged_requests_never_crash_and_an_error_is_the_last(
    parts: list[bytes], cuts: list[int], junk: bytes, at: int, taken: int
) -> None:
    wire = b"".join(as_bytes(number, body, offer=False) for number, body in enumerate(parts))
    wire = wire[: at % len(wire)] + junk + wire[at % len(wire) + taken :]
    budget = BodyBudget(10**6)
    read = reader(budget)
    feed_split(read, wire, cuts)
    errors = [item for item in read.queue if isinstance(item, ApiError)]
    assert errors == list(read.queue)[-len(errors) :] if errors else True
    assert len(errors) <= 1
    assert read.refusing or not errors
    read.close()
    assert budget.held == 0


def test_the_process_holds_no_more_bodies_than_it_may() -> None:
    budget = BodyBudget(100)
    first, second = reader(budget), reader(budget)
    first.feed(as_bytes(0, b"x" * 90, False))
    second.feed(as_bytes(0, b"x" * 90, False))
    refusal = second.queue[-1]
    assert isinstance(refusal, ApiError)
    assert refusal.status == 503
    first.close()
    second.close()
    assert budget.held == 0


def test_a_body_that_grows_too_large_is_refused_on_the_way() -> None:
    read = reader(BodyBudget(10**6))
    read.feed(b"POST /v1/x HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(3):
        read.feed(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    refusal = read.queue[-1]
    assert isinstance(refusal, ApiError)
    assert refusal.status == 413


def test_requests_sent_ahead_are_bounded() -> None:
    read = reader(BodyBudget(10**6))
    read.feed(b"GET /health HTTP/1.1\r\nHost: gw\r\n\r\n" * 500)
    assert len(read.queue) == PIPELINED_MAX + 1
    assert read.refusing


def test_trailers_and_chunk_extensions_without_end_are_refused_and_not_kept() -> None:
    head = b"POST /v1/x HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
    for first, endless in (
        (b"0\r\n", b"a: bbbb\r\n" * 1000),
        (b"0\r\na: ", b"b" * 8000),
        (b"1;", b"a" * 8000),
    ):
        read = reader(BodyBudget(10**6))
        read.feed(head + first)
        fed = 0
        while not read.refusing:
            read.feed(endless)
            fed += len(endless)
            assert fed <= 2 * HEAD_BYTES_MAX
        (error,) = read.queue
        assert isinstance(error, ApiError)
        assert error.status == 431


def test_a_trailer_is_no_header_of_its_request() -> None:
    read = reader(BodyBudget(10**6))
    chunked = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Late: 1\r\n\r\n"
    read.feed(b"POST /v1/x HTTP/1.1\r\nHost: gw\r\n" + chunked)
    (request,) = read.queue
    assert isinstance(request, Request)
    assert b"x-late" not in b"".join(request.lines).lower()


def test_a_refused_request_is_not_answered_for_the_page_of_the_next() -> None:
    read = reader(BodyBudget(10**6))
    refused = b"GET /health HTTP/1.1\r\nOrigin: https://one.example\r\n\r\n"
    read.feed(refused + b"GET /health HTTP/1.1\r\nHost: gw\r\nOrigin: https://two.example\r\n\r\n")
    (error,) = read.queue
    assert isinstance(error, ApiError)
    assert read.origin == b"https://one.example"
