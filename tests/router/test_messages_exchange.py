"""`/v1/messages` through a real router: passed on where the engine serves it, else translated."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import msgspec
import pytest

from tests.router.support import EVENT_STREAM, Fleet, Script, Seen, chunk, model, plain, post, raw, until
from tests.router.test_messages_answer import chunks, completion, events

STREAM_HEAD = b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"
NOT_FOUND = b'{"detail":"Not Found"}'
CHAT = "/v1/chat/completions"


def body(**more: Any) -> bytes:
    return json.dumps(
        {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **more}
    ).encode()


def ask(path: str = "/v1/messages", headers: bytes = b"", version: str = "1.1", **more: Any) -> bytes:
    return post(body(**more), path, headers, version)


def serving(**paths: Script) -> Script:
    """Answers by path: `chat`, `messages`, `count`, `tokenize`; 404 as FastAPI's for the others."""
    known = {
        "chat": CHAT,
        "messages": "/v1/messages",
        "count": "/v1/messages/count_tokens",
        "tokenize": "/tokenize",
    }
    by_path = {known[name]: script for name, script in paths.items()}

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await by_path.get(seen.target.partition("?")[0], plain(NOT_FOUND, 404))(seen, reader, writer)

    return script


def streamed(*pieces: bytes, **how: Any) -> Script:
    return raw(STREAM_HEAD, *(chunk(piece) for piece in pieces), b"0\r\n\r\n", **how)


def test_an_engine_that_serves_it_gets_it_as_it_is(play) -> None:
    told = b'{"id":"msg_1","type":"message","content":[]}'

    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(told))
        sent = body(extra=[1.50])
        answer = await fleet.ask(post(sent, "/v1/messages?beta=true", b"anthropic-version: 2023-06-01\r\n"))
        assert (answer.status, answer.body) == (200, told)
        assert answer.headers["request-id"] == answer.headers["x-request-id"]
        seen = engine.requests[0]
        assert (seen.target, seen.body) == ("/v1/messages?beta=true", sent)
        assert seen.headers["anthropic-version"] == "2023-06-01"

    play(scenario)


def test_an_engine_without_it_is_asked_in_translation_and_that_is_remembered(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(serving(chat=plain(completion({"content": "hello"}))))
        for _ in range(3):
            answer = await fleet.ask(ask(headers=b"accept-encoding: gzip\r\n"))
            assert answer.status == 200
            assert json.loads(answer.body)["content"] == [{"type": "text", "text": "hello"}]
            assert answer.headers["content-length"] == str(len(answer.body))
            assert answer.headers["request-id"]
        assert [seen.target for seen in engine.requests] == ["/v1/messages", CHAT, CHAT, CHAT]
        assert all("accept-encoding" not in seen.headers for seen in engine.requests)
        outcome = await fleet.outcome()
        assert (outcome.status, outcome.retries) == (200, 0)

    play(scenario)


@pytest.mark.parametrize(
    ("way", "expected"), [("translate", [CHAT]), ("engine", ["/v1/messages"]), ("auto", ["/v1/messages", CHAT])]
)
def test_the_catalog_may_say_which_way_it_goes(play, way: str, expected: list[str]) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(serving(chat=plain(completion({"content": "x"}))), anthropic=way)
        answer = await fleet.ask(ask())
        assert [seen.target for seen in engine.requests] == expected
        if way == "engine":
            assert answer.status == 404
            error = json.loads(answer.body)["error"]
            assert error["type"] == "not_found_error"
            assert "does not serve /v1/messages (Not Found)" in error["message"]

    play(scenario)


def test_a_translated_stream_reaches_the_client_event_by_event(play) -> None:
    raw_chunks = chunks({"content": "a"}, {"content": "b"})
    first, rest = raw_chunks[:200], raw_chunks[200:]

    async def scenario(fleet: Fleet) -> None:
        go_on = asyncio.Event()

        async def chat(seen, reader, writer) -> None:
            writer.write(STREAM_HEAD + chunk(first))
            await writer.drain()
            await go_on.wait()
            writer.write(chunk(rest) + b"0\r\n\r\n")

        await fleet.serve(serving(chat=chat))
        client = await fleet.client()
        client.send(ask(stream=True))
        status, headers = await client.head()
        assert (status, headers["content-type"], headers["transfer-encoding"]) == (
            200,
            "text/event-stream",
            "chunked",
        )
        assert headers["x-accel-buffering"] == "no"
        assert "content-length" not in headers
        size = int(await client.reader.readline(), 16)
        assert b"message_start" in await client.reader.readexactly(size + 2)
        go_on.set()
        end = await client.reader.readuntil(b"\r\n0\r\n\r\n")
        assert b"message_stop" in end
        client.send(ask(stream=True))  # the connection serves another
        assert [kind for kind, _ in events((await client.answer()).body)][-1] == "message_stop"

    play(scenario)


def test_a_client_of_http10_gets_the_bare_events(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(serving(chat=streamed(chunks({"content": "a"}))))
        answer = await fleet.ask(ask(stream=True, version="1.0"))
        assert answer.closed
        assert [kind for kind, _ in events(answer.body)][-1] == "message_stop"

    play(scenario)


@pytest.mark.parametrize("native", [False, True])
def test_a_stream_that_breaks_ends_with_anthropics_error_event(play, native: bool) -> None:
    begun = (
        b'event: message_start\ndata: {"type":"message_start"}\n\n' if native else chunks({"content": "a"})[:200]
    )
    path = "messages" if native else "chat"

    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(serving(**{path: raw(STREAM_HEAD, chunk(begun), abort=True)}))
        client = await fleet.client()
        client.send(ask(stream=True, headers=b"x-request-id: mine\r\n"))
        answer = await client.answer()
        last = answer.body.rstrip().rpartition(b"\n\n")[2].removeprefix(b"\n")
        kind, data = last.split(b"\n")
        assert kind == b"event: error"
        told = json.loads(data.removeprefix(b"data: "))
        assert (told["type"], told["error"]["type"], told["request_id"]) == ("error", "api_error", "mine")
        assert await client.rest() == b""
        assert (await fleet.outcome()).status == 502

    play(scenario)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_translated_stream_whose_last_word_was_said_is_not_cut_when_its_engine_dies(play, version: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        told = chunks({"content": "a"})
        assert told.endswith(b"data: [DONE]\n\n")
        await fleet.serve(raw(STREAM_HEAD + chunk(told), abort=True), anthropic="translate")
        client = await fleet.client()
        client.send(ask(stream=True, version=version))
        answer = await client.answer()
        assert events(answer.body)[-1][0] == "message_stop"
        assert b"event: error" not in answer.body
        assert await client.rest() == b"", "the connection is closed in order"

    play(scenario)


def test_a_dead_engine_is_replaced_by_another_also_in_translation(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        dead = await fleet.engine(raw(abort=True))
        good = await fleet.engine(serving(chat=plain(completion({"content": "x"}))))
        native = await fleet.engine(plain(b'{"type":"message"}'))
        await fleet.route(model("m", dead, good), model("n", dead, native))
        for _ in range(12):
            answer = await fleet.ask(ask())
            assert (answer.status, json.loads(answer.body)["type"]) == (200, "message")
            answer = await fleet.ask(ask(model="n"))
            assert (answer.status, answer.body) == (200, b'{"type":"message"}')
        await until(lambda: any(outcome.retries for outcome in fleet.outcomes), "an outcome that tells of it")

    play(scenario)


def test_a_503_goes_to_another_engine_and_a_translated_one_may_follow_a_native_one(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        busy = await fleet.engine(plain(b"busy", 503))
        other = await fleet.engine(serving(chat=plain(completion({"content": "x"}))))
        await fleet.route(model("m", busy, other))
        for _ in range(6):
            assert (await fleet.ask(ask())).status == 200
        await fleet.route(model("m", busy))
        answer = await fleet.ask(ask())
        assert answer.status == 503
        assert json.loads(answer.body)["error"] == {"type": "overloaded_error", "message": "busy"}

    play(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        plain(b"nonsense"),
        plain(completion({"content": "half"}, "abort")),
        plain(completion({"content": "x"}), 200, b"content-encoding: gzip\r\n"),
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{", abort=True),
        streamed(b"data: nonsense\n\n"),
        streamed(b"data: [DONE]\n\n"),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_not_an_empty_message(play, answer: Script) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(serving(chat=answer), anthropic="translate")
        got = await fleet.ask(ask(stream=True))
        assert got.status == 502
        told = json.loads(got.body)
        assert told["error"]["type"] == "api_error"
        assert "the engine m-0" in told["error"]["message"]
        assert (await fleet.outcome()).status == 502
        assert not fleet.in_flight

    play(scenario)


def test_what_cannot_be_translated_is_refused_and_costs_the_engine_nothing(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(b"{}"), anthropic="translate")
        answer = await fleet.ask(ask(messages=[{"role": "user", "content": [{"type": "video"}]}]))
        assert answer.status == 400
        assert "messages.0.content.0" in json.loads(answer.body)["error"]["message"]
        assert not engine.requests
        await fleet.serve(serving())
        answer = await fleet.ask(ask(messages=[{"role": "user", "content": [{"type": "video"}]}]))
        assert answer.status == 400
        outcome = await fleet.outcome()
        assert outcome.status == 400
        assert not fleet.in_flight

    play(scenario)


def test_tokens_are_counted_by_the_engine_itself_by_its_tokenizer_or_not_at_all(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        own = await fleet.engine(serving(count=plain(b'{"input_tokens":7}')))
        tokenizer = await fleet.engine(serving(tokenize=plain(b'{"count":9,"tokens":[]}')))
        neither = await fleet.engine(serving())
        await fleet.route(model("own", own), model("tokenizer", tokenizer), model("neither", neither))
        base = f"http://127.0.0.1:{fleet.router.port}"
        async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:

            async def count(name: str) -> int:
                counted = await client.messages.count_tokens(
                    model=name, messages=[{"role": "user", "content": "hi"}]
                )
                return counted.input_tokens

            assert [await count("own"), await count("tokenizer")] == [7, 9]
            with pytest.raises(anthropic.NotFoundError) as caught:
                await count("neither")
        assert "counts no tokens" in caught.value.body["error"]["message"]
        assert json.loads(tokenizer.requests[-1].body)["messages"] == [{"role": "user", "content": "hi"}]

    play(scenario)


@pytest.mark.parametrize(
    ("status", "answer", "raised", "kind"),
    [
        (400, b'{"object":"error","message":"no"}', anthropic.BadRequestError, "invalid_request_error"),
        (403, b'{"error":"no"}', anthropic.PermissionDeniedError, "permission_error"),
        (429, b'{"detail":"no"}', anthropic.RateLimitError, "rate_limit_error"),
        (500, b"no", anthropic.InternalServerError, "api_error"),
        (
            400,
            b'{"type":"error","error":{"type":"BadRequestError","message":"no"}}',
            anthropic.BadRequestError,
            "",
        ),
    ],
)
def test_the_anthropic_client_raises_its_own_class_with_the_engines_message(
    play, status: int, answer: bytes, raised: type[anthropic.APIStatusError], kind: str
) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain(answer, status))
        base = f"http://127.0.0.1:{fleet.router.port}"
        async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
            with pytest.raises(raised) as caught:
                await client.messages.create(
                    model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}]
                )
        assert caught.value.body["error"] == {"type": kind or "invalid_request_error", "message": "no"}
        assert caught.value.request_id

    play(scenario)


@pytest.mark.parametrize(
    ("request_", "status", "kind"),
    [
        (post(b"not json", "/v1/messages"), 400, "invalid_request_error"),
        (post(b'{"model":"nope"}', "/v1/messages"), 404, "not_found_error"),
        (post(b'{"model":"empty"}', "/v1/messages"), 503, "overloaded_error"),
        (b"GET /v1/messages HTTP/1.1\r\nhost: g\r\n\r\n", 405, "invalid_request_error"),
        (
            b"POST /v1/messages HTTP/1.1\r\nhost: g\r\ncontent-length: 99999999999\r\n\r\n",
            413,
            "request_too_large",
        ),
        (b"POST /v1/messages HTTP/1.1\r\nhost: g\r\nhost: h\r\n\r\n", 400, "invalid_request_error"),
        (b"POST http://g/v1/messages?a=b HTTP/1.1\r\nhost: g\r\nhost: h\r\n\r\n", 400, "invalid_request_error"),
    ],
)
def test_the_gateways_own_errors_are_anthropics_too(play, request_: bytes, status: int, kind: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.route(model("empty"))
        answer = await fleet.ask(request_)
        told = json.loads(answer.body)
        assert (answer.status, told["type"], told["error"]["type"]) == (status, "error", kind)
        assert told["error"]["message"]

    play(scenario)


def test_the_name_at_a_static_endpoint_is_put_into_the_translation_too(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(serving(chat=plain(completion({"content": "x"}))))
        route = model("m", engine)
        (endpoint,) = route.endpoints
        there = msgspec.structs.replace(endpoint, upstream_model="there")
        await fleet.route(msgspec.structs.replace(route, endpoints=[there]))
        answer = await fleet.ask(ask())
        assert json.loads(answer.body)["model"] == "m"
        assert [json.loads(seen.body)["model"] for seen in engine.requests] == ["there", "there"]

    play(scenario)
