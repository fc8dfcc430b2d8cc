"""W3C Trace Context: what of a client's headers is believed, and what an engine gets."""

from __future__ import annotations

import time

import pytest

from llmgw.router.request import Request, read_request
from llmgw.router.tracing.context import Parent, parent_of, read_traceparent, with_parent, write_traceparent
from llmgw.router.tracing.spans import EVENTS_MAX, Span, Tracer
from tests.router.conftest import Scenario
from tests.router.support import Fleet, plain, post

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"


def request(*headers: tuple[bytes, bytes]) -> Request:
    return read_request(b"POST", b"/v1/chat/completions", "1.1", [(b"host", b"gw"), *headers], keep_alive=True)


def test_a_traceparent_is_read_and_written_as_the_standard_has_it() -> None:
    parent = read_traceparent(GIVEN.encode())
    assert parent == Parent(int(TRACE, 16), int(PARENT, 16), True)
    assert write_traceparent(parent.trace_id, parent.span_id, True).decode() == GIVEN
    assert write_traceparent(1, 2, False) == b"00-" + b"0" * 31 + b"1-" + b"0" * 15 + b"2-00"


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (GIVEN[:-2] + "00", False),
        (GIVEN[:-2] + "ff", True),
        (GIVEN[:-2] + "02", False),
        ("cc" + GIVEN[2:], True),
        ("cc" + GIVEN[2:] + "-what-the-future-brings", True),
    ],
)
def test_other_flags_and_later_versions_are_read_as_far_as_they_are_known(value: str, sampled: bool) -> None:
    assert read_traceparent(value.encode()) == Parent(int(TRACE, 16), int(PARENT, 16), sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        GIVEN.upper(),
        "ff" + GIVEN[2:],
        GIVEN + "-more",
        GIVEN + "0",
        "cc" + GIVEN[2:] + "more",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        GIVEN.replace("-", "_"),
        GIVEN + "\u00e9",
    ],
)
def test_what_is_malformed_is_no_parent(value: str) -> None:
    assert read_traceparent(value.encode()) is None


def test_an_engine_gets_one_traceparent_and_a_tracestate_that_belongs_to_it() -> None:
    new = write_traceparent(5, 6, True)
    good = request((b"traceparent", GIVEN.encode()), (b"tracestate", b"a=1"), (b"accept", b"*/*"))
    parent = parent_of(good.lines)
    assert parent is not None
    assert (
        with_parent(good.lines, parent, new) == b"tracestate: a=1\r\naccept: */*\r\ntraceparent: " + new + b"\r\n"
    )
    two = request(*[(b"traceparent", GIVEN.encode())] * 2, (b"tracestate", b"a=1"))
    assert parent_of(two.lines) is None, "nobody knows which of them is meant"
    assert with_parent(two.lines, None, new) == b"traceparent: " + new + b"\r\n"
    named = request((b"x-traceparent", GIVEN.encode()))
    assert parent_of(named.lines) is None
    assert with_parent(named.lines, None, new).startswith(b"x-traceparent: 00-")


def test_a_client_that_has_decided_is_followed_and_others_are_sampled_by_their_share() -> None:
    finished: list[Span] = []
    never, always, some = (Tracer(share, finished.append) for share in (0.0, 1.0, 0.25))
    asked = request((b"traceparent", GIVEN.encode()))
    span = never.begin(asked, 1.0)
    assert span is not None
    assert (f"{span.trace_id:032x}", span.parent_id) == (TRACE, int(PARENT, 16))
    assert asked.lines == b"traceparent: " + write_traceparent(span.trace_id, span.span_id, True) + b"\r\n"
    declined = request((b"traceparent", GIVEN[:-2].encode() + b"00"), (b"tracestate", b"a=1"))
    before = declined.lines
    assert always.begin(declined, 1.0) is None
    assert declined.lines == before, "the engine hears of it in the client's own words"
    unasked = request()
    assert never.begin(unasked, 1.0) is None
    passed_on = parent_of(unasked.lines)
    assert passed_on is not None
    assert not passed_on.sampled
    count = sum(some.begin(request(), 1.0) is not None for _ in range(2000))
    assert 380 < count < 620


def test_what_is_noted_of_a_request_is_bounded() -> None:
    span = Span(1, 2, None, request(), time.monotonic())
    for _ in range(3 * EVENTS_MAX):
        span.note("engine failed", 1.0)
    assert len(span.events) == EVENTS_MAX


def test_without_tracing_what_a_client_says_of_its_trace_goes_on_untouched(play: object) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain())
        for value in (GIVEN, "nonsense"):
            await fleet.ask(post(headers=f"traceparent: {value}\r\ntracestate: a=1,b=2\r\n".encode()))
            assert engine.requests[-1].headers["traceparent"] == value
            assert engine.requests[-1].headers["tracestate"] == "a=1,b=2"
        await fleet.ask(post())
        assert "traceparent" not in engine.requests[-1].headers

    run: Scenario = scenario
    play(run)  # type: ignore[operator]
