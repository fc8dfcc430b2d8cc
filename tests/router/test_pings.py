"""Comments in streams until their first token, and what may still come behind a head that was sent early."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.router.support import (
    EVENT_STREAM,
    Answer,
    Client,
    Fleet,
    RouterProcess,
    Script,
    Seen,
    chunk,
    fleet_of,
    model,
    plain,
    post,
    raw,
    until,
)
from tests.router.test_queueing import Gate, limited, queued

Scenario = Callable[[Fleet], Awaitable[None]]
STREAM = b'{"model":"m","stream":true}'
TOKENS = b'data: {"a":1}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM


@pytest.fixture(scope="module")
def pinging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    process = RouterProcess(tmp_path_factory.mktemp("pinging"), "--ping-s=0.1")
    yield process
    process.stop()


@pytest.fixture
def play(pinging: RouterProcess) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), fleet_of(pinging) as fleet:
                await scenario(fleet)

        asyncio.run(main())

    return run


def late(script: Script, go_on: asyncio.Event) -> Script:
    """Answers when it is let."""

    async def wait(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await script(seen, reader, writer)

    return wait


async def pinged_then(
    fleet: Fleet, script: Script, request: bytes | None = None, **route: object
) -> tuple[Client, Answer]:
    """Wait for the first comment, let the engine answer, and return the whole."""
    go_on = asyncio.Event()
    await fleet.serve(late(script, go_on), pings=True, **route)
    client = await fleet.client()
    client.send(request or post(STREAM))
    async with asyncio.timeout(5):
        head = await client.reader.readuntil(b"\r\n\r\n")
        first = await client.reader.readuntil(b": ping\n\n")
    go_on.set()
    rest = Client(asyncio.StreamReader(), client.writer)
    rest.reader.feed_data(head + first)

    async def pass_on() -> None:
        while data := await client.reader.read(65536):
            rest.reader.feed_data(data)
        rest.reader.feed_eof()

    passing = asyncio.create_task(pass_on())
    try:
        return rest, await rest.answer()
    finally:
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)


def without_comments(body: bytes) -> bytes:
    return b"".join(part + b"\n\n" for part in body.split(b"\n\n") if part and not part.startswith(b":"))


@pytest.mark.parametrize(
    "script",
    [
        raw(HEAD + b"transfer-encoding: chunked\r\n\r\n", chunk(TOKENS[:9]), chunk(TOKENS[9:]) + b"0\r\n\r\n"),
        raw(HEAD + b"content-length: %d\r\n\r\n" % len(TOKENS) + TOKENS[:5], TOKENS[5:]),
        raw(HEAD + b"\r\n" + TOKENS[:5], TOKENS[5:], close=True),
    ],
    ids=["chunked", "length", "until-close"],
)
def test_a_stream_hears_something_until_its_first_token_and_nothing_in_it_is_lost(play, script: Script) -> None:
    async def scenario(fleet: Fleet) -> None:
        _, answer = await pinged_then(fleet, script)
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-request-id"].startswith("req-")
        assert answer.body.startswith(b": ping\n\n")
        assert without_comments(answer.body) == TOKENS
        outcome = await fleet.outcome()
        assert (outcome.status, outcome.stream) == (200, True)

    play(scenario)


def test_a_client_of_http_1_0_gets_its_comments_and_its_stream_without_chunks(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        script = raw(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(TOKENS) + b"0\r\n\r\n")
        _, answer = await pinged_then(fleet, script, post(STREAM, version="1.0"))
        assert "transfer-encoding" not in answer.headers
        assert answer.closed
        assert without_comments(answer.body) == TOKENS

    play(scenario)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message":\n "too long", "code": 400}}', "too long"),
        (b'{"object":"error","message":"too long"}', "too long"),
        (b"<html>no</html>", "answered with a page"),
        (b"x" * 100_000, "The engine answered 400 and no stream."),
    ],
)
def test_an_engines_error_that_comes_late_is_an_event_of_the_stream(play, body: bytes, message: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        _, answer = await pinged_then(fleet, plain(body, 400))
        assert answer.status == 200
        event = without_comments(answer.body)
        assert event.startswith(b"data: ")
        assert message in json.loads(event[6:])["error"]["message"]
        assert (await fleet.outcome()).status == 400

    play(scenario)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"id":"c","choices":[{"message":{"content":"a"}}]}', "The engine answered 200 and no stream."),
        (b'{"error":null}', "The engine answered 200 and no stream."),
        (b'{"error":"too long"}', "too long"),
        (b'{"error":{"message":"too long"}}', "too long"),
        (b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "The engine answered 200 and no stream."),
        (b"", "The engine answered 200 and no stream."),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_an_answer_that_is_no_stream_is_an_error_in_the_words_of_the_api(
    play, path: str, body: bytes, message: str
) -> None:
    async def scenario(fleet: Fleet) -> None:
        _, answer = await pinged_then(fleet, plain(body), post(STREAM, path), anthropic="engine")
        *name, data = without_comments(answer.body).strip().split(b"\n")
        told = json.loads(data.removeprefix(b"data: "))
        assert told["error"]["message"] == message
        anthropics = path == "/v1/messages"
        assert name == ([b"event: error"] if anthropics else [])
        assert told.get("type") == ("error" if anthropics else None)
        if anthropics:
            assert told["error"]["type"] == "api_error"
        assert (await fleet.outcome()).status == 502
        assert not fleet.in_flight

    play(scenario)


@pytest.mark.parametrize("way", ["engine", "translate"])
def test_it_is_an_event_with_a_name_in_anthropics_api(play, way: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        body = b'{"model":"m","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"x"}]}'
        asked = post(body, "/v1/messages")
        script = plain(b'{"error": {"message": "too long"}}', 400)
        _, answer = await pinged_then(fleet, script, asked, anthropic=way)
        name, _, data = without_comments(answer.body).partition(b"\ndata: ")
        assert name == b"event: error"
        assert json.loads(data)["type"] == "error"
        assert "too long" in json.loads(data)["error"]["message"]

    play(scenario)


def test_an_error_that_comes_at_once_keeps_its_status(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain(b'{"error":{}}', 400), pings=True)
        assert (await fleet.ask(post(STREAM))).status == 400

    play(scenario)


def test_another_engine_is_tried_behind_a_head_that_was_sent_early(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        asked: list[Seen] = []
        die = asyncio.Event()

        async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(seen)
            if len(asked) == 1:
                await die.wait()
                writer.transport.abort()
            else:
                writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(TOKENS) + b"0\r\n\r\n")

        await fleet.serve(script, script, pings=True)
        client = await fleet.client()
        client.send(post(STREAM))
        status, _ = await client.head()
        die.set()
        async with asyncio.timeout(5):
            body = await client.reader.readuntil(b"0\r\n\r\n")
        assert status == 200
        assert chunk(TOKENS) in body
        assert len(asked) == 2
        client.send(post(b'{"model":"m"}'))
        assert (await client.answer()).status == 200, "the connection is kept"

    play(scenario)


def test_when_no_engine_answers_the_stream_ends_with_the_error(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        _, answer = await pinged_then(fleet, raw(abort=True))
        error = json.loads(without_comments(answer.body)[6:])["error"]
        assert error["code"] == "engine_failed"
        assert b"[DONE]" not in answer.body
        assert (await fleet.outcome()).status == 502

    play(scenario)


def test_a_stream_that_breaks_behind_an_early_head_ends_with_an_error_event(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        script = raw(HEAD + b"content-length: 500\r\n\r\n" + TOKENS[:15], abort=True)
        _, answer = await pinged_then(fleet, script)
        assert b'data: {"a":1}\n\n' in answer.body
        assert b"stream_broken" in answer.body

    play(scenario)


def test_only_streams_of_models_with_pings_get_them(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        go_on = asyncio.Event()
        engine = await fleet.engine(late(plain(b"good", headers=b"x-from: engine\r\n"), go_on))
        await fleet.route(model("m", engine, pings=True), model("quiet", engine))
        plain_one = asyncio.create_task(fleet.ask(post(b'{"model":"m"}')))
        stream = asyncio.create_task(fleet.ask(post(b'{"model":"quiet","stream":true}')))
        pinged = await fleet.client()
        pinged.send(post(STREAM))
        await pinged.head()  # an interval has passed
        go_on.set()
        assert (await plain_one).headers["x-from"] == "engine"
        assert (await stream).headers["x-from"] == "engine"

    play(scenario)


def test_who_asks_is_told_the_place_in_the_queue(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        gate = Gate()
        engine = await fleet.engine(gate.script)
        await fleet.route(limited(model("m", engine, pings=True), 1))
        asks = b"X-Queue-Position: true\r\n"
        first = asyncio.create_task(fleet.ask(post(headers=asks)))
        await until(lambda: gate.running, "the first is with the engine")
        second = asyncio.create_task(fleet.ask(post(headers=asks)))
        await queued(fleet, 1)
        client = await fleet.client()
        client.send(post(STREAM, headers=asks))
        status, headers = await client.head()
        assert (status, headers["x-queue-position"]) == (200, "2")
        async with asyncio.timeout(5):
            assert await client.reader.readuntil(b"\n\n\r\n") == b"c\r\n: queued 2\n\n\r\n"
            gate.answer()
            await client.reader.readuntil(b": queued 1\n\n")
        await until(lambda: gate.running, "the second is with the engine")
        gate.answer()
        await until(lambda: gate.running, "the third is with the engine")
        gate.answer()
        answers = [await first, await second]
        assert [answer.headers["x-queue-position"] for answer in answers] == ["0", "1"]
        assert answers[0].headers["x-queue-wait-ms"] == "0"
        assert int(answers[1].headers["x-queue-wait-ms"]) > 0
        assert "x-queue-position" not in engine_headers(fleet)

    play(scenario)


def engine_headers(fleet: Fleet) -> set[str]:
    return {name for engine in fleet.engines for seen in engine.requests for name in seen.headers}


def test_a_client_that_leaves_between_comments_is_forgotten(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        gate = Gate()
        await fleet.route(limited(model("m", await fleet.engine(gate.script), pings=True), 1))
        first = asyncio.create_task(fleet.ask(post()))
        await until(lambda: gate.running, "the first is with the engine")
        client = await fleet.client()
        client.send(post(STREAM))
        await client.head()
        client.close()
        await queued(fleet, 0)
        await until(lambda: [outcome.status for outcome in fleet.outcomes] == [499], "it is said to have left")
        gate.answer()
        assert (await first).status == 200

    play(scenario)


def test_nothing_of_all_this_was_an_error_of_the_router(pinging: RouterProcess) -> None:
    assert "Traceback" not in pinging.log_path.read_text()
