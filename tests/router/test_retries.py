"""Invariant 8: another engine only while no body byte has come, and never a third after two died."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from llmgw.messages.routes import ModelRoute
from tests.patience import PATIENCE
from tests.router.support import EVENT_STREAM, Fleet, chunk, hang, model, plain, post, raw, until

CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"
HALF_HEAD = b"HTTP/1.1 200 OK\r\ncontent-ty"
LENGTH_HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def ask_until_tried(fleet: Fleet, first) -> None:
    """Requests succeed, however often the failing engine is the one that is chosen first."""
    for _ in range(30):
        answer = await fleet.ask(post())
        assert (answer.status, answer.body) == (200, b"good")
        if first():
            return
    raise AssertionError("the failing engine was never chosen")


@pytest.mark.parametrize(
    "failing",
    [
        raw(abort=True),
        raw(close=True),
        raw(HALF_HEAD, abort=True),
        raw(LENGTH_HEAD, abort=True),
        raw(CHUNKED_HEAD, close=True),
        raw(CHUNKED_HEAD + b"5\r\n", close=True),
        raw(b"nonsense that is no HTTP\r\n\r\n"),
        plain(b"busy", 502),
        plain(b"busy", 503),
        plain(b"busy", 504),
    ],
    ids=[
        "reset",
        "closed",
        "half a head",
        "head only",
        "chunked head",
        "size only",
        "garbage",
        "502",
        "503",
        "504",
    ],
)
def test_a_failure_before_the_first_body_byte_is_repeated_elsewhere(play, failing) -> None:
    async def scenario(fleet: Fleet) -> None:
        bad, good = await fleet.serve(failing, plain(b"good"))
        await ask_until_tried(fleet, lambda: bad.requests)
        await until(lambda: any(outcome.retries for outcome in fleet.outcomes), "an outcome with a retry")
        retried = next(outcome for outcome in fleet.outcomes if outcome.retries)
        assert (retried.endpoint, retried.status, retried.retries, retried.error) == ("m-1", 200, 1, None)
        assert str(retried.retried_because).startswith("m-0: it ")
        assert all(seen.body == b'{"model":"m"}' for seen in good.requests)

    play(scenario)


def test_what_is_told_of_a_request_says_why_it_was_tried_again_and_why_it_failed(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(raw(abort=True), raw(abort=True))
        answer = await fleet.ask(post(headers=b"x-request-id: my-own-7\r\n"))
        assert (answer.status, answer.headers["x-request-id"]) == (502, "my-own-7")
        outcome = await fleet.outcome()
        first, last = ("m-0", "m-1") if outcome.endpoint == "m-1" else ("m-1", "m-0")
        assert (outcome.endpoint, outcome.retries) == (last, 1), "the one that was asked last is named"
        assert str(outcome.retried_because).startswith(f"{first}: it ")
        assert f"the engine {last}: it " in str(outcome.error)
        assert outcome.request_id == "my-own-7"
        for path in ("/v1/chat/completions", "/v1/messages"):
            fleet.telemetry.clear()
            refused = await fleet.ask(post(b'{"model":"unknown"}', path=path))
            await until(lambda: fleet.outcomes, "the refused one is told")
            (outcome,) = fleet.outcomes
            assert (outcome.status, outcome.request_id) == (404, refused.headers["x-request-id"])

    play(scenario)


def test_a_refused_connection_is_repeated_elsewhere_and_reported(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        good = await fleet.engine(plain(b"good"))
        await fleet.route(model("m", unused_port(), unused_port(), unused_port(), good))
        for _ in range(12):
            assert (await fleet.ask(post())).body == b"good"
        await until(lambda: any(frame.refused for frame in fleet.telemetry), "a refused endpoint")
        assert "m-3" not in {id for frame in fleet.telemetry for id in frame.refused}
        await until(lambda: any("m-3" in frame.alive for frame in fleet.telemetry), "a sign of life")

    play(scenario)


def test_an_endpoint_that_takes_no_connection_costs_its_timeout_only(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            await asyncio.sleep(0.05)
            await fleet.route(model("m", port))
            answer = await fleet.ask(post())
            assert answer.status == 502
            assert "no connection within 0.5 s" in json.loads(answer.body)["error"]["message"]
            for filler in fillers:
                filler.close()

    play(scenario)


def test_a_third_engine_is_never_tried_after_two_died(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engines = await fleet.serve(*[raw(abort=True)] * 4)
        answer = await fleet.ask(post())
        assert answer.status == 502
        error = json.loads(answer.body)["error"]
        assert error["code"] == "engine_failed"
        assert "m-" in error["message"]
        assert sum(len(engine.requests) for engine in engines) == 2
        assert (await fleet.outcome()).retries == 1

    play(scenario)


def test_the_answer_of_an_only_engine_is_passed_whatever_its_status(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(b'{"error":{"message":"why"}}', 503, b"retry-after: 7\r\n"))
        answer = await fleet.ask(post())
        assert (answer.status, answer.body, answer.headers["retry-after"]) == (
            503,
            b'{"error":{"message":"why"}}',
            "7",
        )
        assert len(engine.requests) == 1

    play(scenario)


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 501])
def test_other_errors_are_the_clients_answer_and_not_repeated(play, status: int) -> None:
    async def scenario(fleet: Fleet) -> None:
        engines = await fleet.serve(
            plain(b'{"error":{"message":"no"}}', status), plain(b'{"error":{"message":"no"}}', status)
        )
        answer = await fleet.ask(post())
        assert (answer.status, answer.body) == (status, b'{"error":{"message":"no"}}')
        assert sum(len(engine.requests) for engine in engines) == 1

    play(scenario)


def test_client_errors_never_take_an_engine_out(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        bad, _ = await fleet.serve(
            plain(b'{"error":{"message":"no"}}', 400), plain(b'{"error":{"message":"no"}}', 400)
        )
        for _ in range(40):
            await fleet.ask(post())
        assert len(bad.requests) > 8

    play(scenario)


def test_a_failing_engine_does_not_draw_the_traffic(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        bad, good = await fleet.serve(plain(b'{"error":{"message":"no"}}', 500), plain(b"good"))
        for _ in range(40):
            await fleet.ask(post())
        assert len(bad.requests) <= 4
        assert len(good.requests) >= 36

    play(scenario)


def test_an_engine_that_closes_idle_connections_early_is_asked_again_without_counting(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        used: set[object] = set()

        async def once_a_connection(seen, reader, writer) -> None:
            if writer in used:
                writer.transport.abort()
            else:
                used.add(writer)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood")

        (engine,) = await fleet.serve(once_a_connection)
        for _ in range(4):
            assert (await fleet.ask(post())).body == b"good"
        assert engine.connections == 4
        assert len(engine.requests) == 7
        await until(lambda: len(fleet.outcomes) == 4, "four outcomes")
        assert {outcome.retries for outcome in fleet.outcomes} == {0}
        assert not any(frame.refused for frame in fleet.telemetry)

    play(scenario)


def test_an_engine_that_gives_no_byte_in_time_is_left_for_another(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        stuck, _ = await fleet.serve(hang, plain(b"good"), first_byte_timeout_s=0.2)
        await ask_until_tried(fleet, lambda: stuck.requests)
        await asyncio.wait_for(stuck.requests[0].closed.wait(), 5 * PATIENCE)

    play(scenario)


def test_a_head_without_a_body_is_no_first_byte(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def head_only(seen, reader, writer) -> None:
            writer.write(CHUNKED_HEAD)
            await hang(seen, reader, writer)

        await fleet.serve(head_only, first_byte_timeout_s=0.2)
        answer = await fleet.ask(post())
        assert answer.status == 504
        assert json.loads(answer.body)["error"]["code"] == "first_byte_timeout"

    play(scenario)


@pytest.mark.parametrize(
    ("wire", "kept"),
    [
        (chunk(b"data: 1\n\n"), b"data: 1\n\n"),
        (chunk(b"data: 1\n\n") + b"40", b"data: 1\n\n"),
        (chunk(b"data: 1\n\n") + b"40\r\ndata: {", b"data: 1\n\ndata: {"),
        (b"9\r\ndata: 1\n\n", b"data: 1\n\n"),
        (b"9\r\ndata: 1\n\n\r", b"data: 1\n\n"),
        (chunk(b"data: 1\n\n") + b"0\r\n", b"data: 1\n\n"),
        (chunk(b"data: 1\n\n") + b"zz\r\n", b"data: 1\n\n"),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_an_event_stream_that_breaks_ends_with_an_error_event(
    play, wire: bytes, kept: bytes, version: str
) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine, other) = await fleet.serve(raw(CHUNKED_HEAD + wire[:12], wire[12:], abort=True), plain())
        await fleet.route(model("m", engine))
        answer = await fleet.ask(post(b'{"model":"m","stream":true}', version=version))
        assert answer.body.startswith(kept)
        events = [event.strip() for event in answer.body.split(b"\n\n") if event.strip()]
        error = json.loads(events[-1].removeprefix(b"data: "))["error"]
        assert error["code"] == "stream_broken"
        assert b"[DONE]" not in answer.body
        assert not other.requests
        outcome = await fleet.outcome()
        assert outcome.status == 502
        assert outcome.error

    play(scenario)


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"content-length: 100\r\n\r\nabc",
    ],
)
def test_any_other_body_that_breaks_is_cut_so_that_the_client_notices(play, wire: bytes) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine, other = await fleet.serve(raw(wire, abort=True), plain())
        await fleet.route(model("m", engine))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await fleet.ask(post())
        assert not other.requests
        assert (await fleet.outcome()).status == 502

    play(scenario)


def test_nothing_ready_says_why_and_when_to_come_back(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.route(ModelRoute(name="m", reason="both replicas are loading", retry_after_s=9))
        answer = await fleet.ask(post())
        assert (answer.status, answer.headers["retry-after"]) == (503, "9")
        error = json.loads(answer.body)["error"]
        assert "both replicas are loading" in error["message"]
        assert error["code"] == "model_not_ready"

    play(scenario)
