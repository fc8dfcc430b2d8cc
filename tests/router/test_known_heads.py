"""A head that is known is read as one that is not: whatever came before changes nothing."""

from __future__ import annotations

import itertools

import pytest

from llmgw.router import request_reader, response_head
from llmgw.router.errors import ApiError
from llmgw.router.known_heads import HEAD_BYTES_MAX, KnownHeads, split_length
from llmgw.router.request import Request
from llmgw.router.request_reader import BodyBudget, RequestReader
from llmgw.router.response_head import BadResponse, ResponseHead
from llmgw.router.response_parser import ResponseParser

BODY = b'{"model": "m", "n": 1}'
# Names of lengths that are written in every way there is, in and between which a second one may hide.
LENGTHS = [
    b"Content-Length: 22",
    b"content-length: 22",
    b"content-length: 3",
    b"content-length: 022",
    b"content-length: +22",
    b"content-length: ",
    b"Content-Length:22",
    b"CONTENT-LENGTH: 22",
    b"content-length: 22\r\ncontent-length: 22",
    b"content-length: 22\r\ncontent-length: 3",
    b"content-length: 3\r\ncontent-length: 22",
    b"content-length: \r\ncontent-length: 22",
    b"content-length: 22\r\ncontent-length: ",
    b"content-length: 3\r\nContent-Length: 22",
    b"x: content-length: 22\r\ncontent-length: 3",
    b"x-content-length: 3\r\ncontent-length: 22",
    b"content-length: 22\r\n and more: 3",
    b"content-length : 22",
    b"content-length: 22\r\ntransfer-encoding: chunked",
    b"content-length: 22\r\nconnection: close",
    b"content-length: 22\r\nconnection: upgrade\r\nupgrade: h2c",
    b"content-length: 22\r\nexpect: 100-continue",
    b"content-length: 22\r\nx-request-id: mine",
    b"content-length: 22\r\nhost: another",
    b"content-length: 99999999999999999999",
]


def request_of(length: bytes, version: bytes = b"1.1") -> bytes:
    return b"POST /v1/x?a=b HTTP/%b\r\nhost: gw\r\nx-session-id: s\r\n%b\r\n\r\n%b" % (version, length, BODY)


def read(*wires: bytes) -> tuple[list[object], bool]:
    """What a new connection reads of the last of these, without what is another one each time."""
    reader = RequestReader(body_bytes_max=1000, budget=BodyBudget(10**6), may_go_on=lambda: None)
    for wire in wires:
        reader.queue.clear()
        reader.feed(wire)
    items: list[object] = []
    for item in reader.queue:
        if isinstance(item, ApiError):
            items.append((item.status, item.message))
            continue
        told = {name: getattr(item, name) for name in Request.__struct_fields__}
        own = item.request_id
        told["own_line"] = item.own_line.replace(own, b"ID")
        if own != b"mine":
            assert own.startswith(b"req-")
        items.append(told)
    return items, reader.refusing


def test_what_a_request_is_read_as_does_not_depend_on_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = [request_of(length, version) for length in LENGTHS for version in (b"1.1", b"1.0")]
    for before, wire in itertools.product(wires, wires):
        monkeypatch.setattr(request_reader, "_known", KnownHeads(16))
        alone = read(wire)
        monkeypatch.setattr(request_reader, "_known", KnownHeads(16))
        read(before)
        assert read(wire) == alone, (before, wire)
        assert read(wire) == alone, (before, wire)
        if not read(before, before)[1]:
            assert read(before, before, wire) == alone, (before, wire)


def test_a_client_that_says_the_same_again_is_known_and_gets_another_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object, **named: object) -> Request:
        raise AssertionError("the head was parsed again")

    monkeypatch.setattr(request_reader, "_known", KnownHeads(16))
    reader = RequestReader(body_bytes_max=1000, budget=BodyBudget(10**6), may_go_on=lambda: None)
    reader.feed(request_of(b"content-length: 22"))
    first = reader.queue.popleft()
    monkeypatch.setattr(request_reader, "read_request", never)
    reader.feed(request_of(b"content-length: 22").replace(BODY, b"{}").replace(b"length: 22", b"length: 2"))
    second = reader.queue.popleft()
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert (first.body, second.body) == (BODY, b"{}")
    assert second.content_length == 2
    assert first.request_id != second.request_id
    assert first.request_id not in second.lines + second.own_line


def test_a_body_above_the_limit_is_refused_also_behind_a_known_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "_known", KnownHeads(16))
    read(request_of(b"content-length: 22"))
    large = request_of(b"content-length: 1001").replace(BODY, b"x" * 1001)
    [refused], refusing = read(large)
    assert isinstance(refused, tuple)
    assert refused[0] == 413
    assert refusing


def test_what_an_answer_is_read_as_does_not_depend_on_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(status: bytes, length: bytes) -> bytes:
        return b"HTTP/1.1 %b\r\ncontent-type: text/plain\r\n%b\r\n\r\n%b" % (status, length, BODY)

    def read_answer(*wires: bytes) -> object:
        parser = ResponseParser()
        try:
            for wire in wires:
                parser.reset()
                body = parser.feed(wire)
        except BadResponse as error:
            return str(error)
        head = parser.head
        assert head is not None
        told = {
            name: getattr(head, name)
            for name in ResponseHead.__struct_fields__
            if name not in ("like", "lines", "before", "after")
        }
        return body, parser.done, parser.excess, parser.reusable(), told

    wires = [answer(status, length) for length in LENGTHS for status in (b"200 OK", b"204 No Content")]
    for before, wire in itertools.product(wires, wires):
        monkeypatch.setattr(response_head, "_known", KnownHeads(16))
        alone = read_answer(wire)
        monkeypatch.setattr(response_head, "_known", KnownHeads(16))
        once = read_answer(before)
        assert read_answer(wire) == alone, (before, wire)
        assert read_answer(wire) == alone, (before, wire)
        if isinstance(once, tuple) and once[3]:  # another answer may follow
            assert read_answer(before, before, wire) == alone, (before, wire)


def test_a_length_is_split_off_only_where_it_is_written_plainly() -> None:
    assert split_length(b"POST / HTTP/1.1\r\nContent-Length: 17\r\na: b\r\n") == (
        b"POST / HTTP/1.1\r\nContent-Length: \r\na: b\r\n",
        len(b"POST / HTTP/1.1\r\nContent-Length: "),
        17,
    )
    for length in (b"+1", b"", b"1 ", b"1_0", b"0x1", b"1,1", b"9" * 13):
        assert split_length(b"POST / HTTP/1.1\r\ncontent-length: %b\r\n" % length) is None
    assert split_length(b"POST / HTTP/1.1\r\nx-content-length: 1\r\n") is None
    assert split_length(b"content-length: 1") is None


def test_as_many_heads_are_known_as_may_be_and_those_that_come_again_stay() -> None:
    known: KnownHeads[int] = KnownHeads(8)
    for number in range(100):
        known.keep(b"%d" % number, number)
        known.keep(b"often", -1) if not number else known.get(b"often")
    assert known.get(b"often") == -1
    assert sum(known.get(b"%d" % number) is not None for number in range(100)) < 8
    assert known.get(b"99") == 99
    known.keep(b"x" * (HEAD_BYTES_MAX + 1), 1)
    assert known.get(b"x" * (HEAD_BYTES_MAX + 1)) is None
