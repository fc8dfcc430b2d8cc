"""HTTP/1.1 as clients and attackers speak it: what is refused, with which status, and what goes on."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.router.support import Fleet, Seen, chunk, model, plain, post, until

H = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\n"


def error_of(body: bytes) -> dict[str, object]:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"].split()) > 3
    return error


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (H + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (H + b"content-encoding: gzip\r\ncontent-length: 0\r\n\r\n", 415),
        (H + b"expect: the impossible\r\ncontent-length: 0\r\n\r\n", 417),
        (b"GET /\r\n\r\n", 505),
        (H + b"x: " + b"a" * 1_000_000, 431),
        (H + b"".join(b"x-%d: %b\r\n" % (n, b"a" * 100) for n in range(700)) + b"\r\n", 431),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: gw\r\n\r\n", 431),
        (b"CONNECT engine:443 HTTP/1.1\r\nhost: engine\r\n\r\n", 405),
    ],
    ids=["coding", "gzip", "expect", "0.9", "one header of a megabyte", "700 headers", "target", "connect"],
)
def test_what_is_not_served_is_named_by_its_status(play, wire: bytes, status: int) -> None:
    async def scenario(fleet: Fleet) -> None:
        client = await fleet.client()
        client.send(wire)
        got, _headers = await client.head()
        assert got == status
        error_of(await client.rest())

    play(scenario)


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/health", 200, None),
        ("HEAD", "/health", 200, None),
        ("OPTIONS", "/v1/chat/completions", 204, None),
        ("OPTIONS", "*", 204, None),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET"),
        ("POST", "/v1/models", 405, "GET"),
        ("POST", "/v1/models/m", 405, "GET"),
        ("GET", "/", 404, "/v1/"),
        ("GET", "/metrics", 404, "/v1/"),
        ("POST", "/generate", 404, "/v1/"),
        ("POST", "/v1/", 404, "/v1/"),
        ("POST", "/v1/../metrics", 404, "plain"),
        ("POST", "/v1/%2e%2e/metrics", 404, "plain"),
        ("POST", "/v1//x", 404, "plain"),
        ("GET", "/v1/models/none", 404, "m, m-alias"),
        ("GET", "http://gw/health", 200, None),
        ("GET", "/v1/responses/resp_1", 404, "keeps no answers"),
        ("DELETE", "/v1/responses/resp_1", 404, "keeps no answers"),
        ("GET", "/v1/responses/resp_1/input_items", 404, "keeps no answers"),
        ("POST", "/v1/responses/resp_1/cancel", 404, "keeps no answers"),
        ("GET", "/v1/responses", 405, "POST"),
        ("GET", "/v1/chat/completions/chatcmpl-1", 404, "keeps no answers"),
        ("POST", "/v1/files", 404, "files"),
        ("GET", "/v1/batches", 404, "batches"),
        ("POST", "/sleep", 404, "/v1/"),
        ("POST", "/v1/load_lora_adapter", 404, "/v1/"),
        ("GET", "/tokenize", 405, "POST"),
        ("OPTIONS", "/rerank", 204, None),
    ],
)
def test_paths_and_methods(play, method: str, path: str, status: int, said: str | None) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.route(model("m", aliases=["m-alias"]))
        client = await fleet.client()
        for _ in range(2):  # the connection is kept after each
            body = b'{"model":"m"}' if method == "POST" else b""
            client.send(
                b"%b %b HTTP/1.1\r\nhost: gw\r\ncontent-length: %d\r\n\r\n%b"
                % (method.encode(), path.encode(), len(body), body)
            )
            answer = await client.answer(bodiless=method == "HEAD")
            assert answer.status == status
            if status == 405:
                assert said is not None
                assert said in answer.headers["allow"]
            elif said is not None:
                assert said in str(error_of(answer.body)["message"])

    play(scenario)


def test_the_list_of_models_has_openais_shape_with_aliases_of_their_own(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        lengths = {"kinds": ["chat"], "context_length": 8192}
        await fleet.route(model("b/big", created_s=7, **lengths), model("a", aliases=["gpt"]))
        client = await fleet.client()
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: gw\r\n\r\n")
        listed = json.loads((await client.answer()).body)
        assert listed["object"] == "list"
        assert [entry["id"] for entry in listed["data"]] == ["a", "b/big", "gpt"]
        assert all(entry["owned_by"] == "llmgw" and entry["object"] == "model" for entry in listed["data"])
        for path in (b"b/big", b"b%2Fbig"):
            client.send(b"GET /v1/models/%b HTTP/1.1\r\nhost: gw\r\n\r\n" % path)
            one = json.loads((await client.answer()).body)
            assert (one["id"], one["created"]) == ("b/big", 7)
            assert (one["kinds"], one["max_model_len"], one["ready"]) == (["chat"], 8192, False)

    play(scenario)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"not json", 400, "invalid_json"),
        (b"", 400, "invalid_json"),
        (b"[" * 1000 + b"]" * 1000, 400, "invalid_json"),
        (b'"m"', 400, "invalid_json"),
        (b"{}", 400, "missing_model"),
        (b'{"model":null}', 400, "invalid_value"),
        (b'{"model":7}', 400, "invalid_value"),
        (b'{"model":["m"]}', 400, "invalid_value"),
        (b'{"model":""}', 400, "invalid_model"),
        (b'{"model":"m"} x', 400, "invalid_json"),
        (b'{"model":"m"', 400, "invalid_json"),
        (b'{"model":"\xff"}', 400, "invalid_json"),
        (b'{"model":"m","stream":"yes"}', 400, "invalid_value"),
        (b'{"x":' + b"[" * 1000 + b"]" * 1000 + b"}", 400, "invalid_json"),
        (b'{"model":"gone"}', 404, "model_not_found"),
    ],
)
def test_a_bad_body_is_answered_and_the_connection_goes_on(play, body: bytes, status: int, code: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain())
        client = await fleet.client()
        client.send(post(body))
        answer = await client.answer()
        assert answer.status == status
        error = error_of(answer.body)
        assert error["code"] == code
        if status == 404:
            assert "the models here are: m" in str(error["message"])
        client.send(post())
        assert (await client.answer()).status == 200

    play(scenario)


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        (
            b"multipart/form-data; boundary=x",
            b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\nb\r\n--x--',
            0,
        ),
        (b"multipart/form-data; boundary=x", b"", 0),
        (b"multipart/form-data; boundary=x", b"no parts at all", 0),
        (b"multipart/form-data", b"--x\r\n", "invalid_multipart"),
    ],
)
def test_a_form_without_a_model_gets_a_sentence(play, content_type: bytes, body: bytes, code: str | int) -> None:
    async def scenario(fleet: Fleet) -> None:
        client = await fleet.client()
        for _ in range(2):
            client.send(
                b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gw\r\ncontent-type: %b\r\n"
                b"content-length: %d\r\n\r\n%b" % (content_type, len(body), body)
            )
            answer = await client.answer()
            assert (answer.status, error_of(answer.body)["code"]) == (400, code or "missing_model")

    play(scenario)


def test_pipelined_requests_are_answered_one_after_the_other_and_in_order(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        running = 0

        async def script(seen: Seen, reader, writer) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0.01)
            running -= 1
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(seen.body), seen.body))

        await fleet.serve(script)
        client = await fleet.client()
        bodies = [b'{"model":"m","n":%d}' % number for number in range(6)]
        client.send(b"".join(map(post, bodies[:4])) + post(bodies[4])[:50])
        await asyncio.sleep(0.02)
        client.send(post(bodies[4])[50:] + post(bodies[5]))
        assert [(await client.answer()).body for _ in bodies] == bodies

    play(scenario)


def test_more_than_a_little_sent_ahead_ends_the_connection_after_the_answer(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        go_on = asyncio.Event()

        async def script(seen: Seen, reader, writer) -> None:
            await go_on.wait()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood")

        (engine,) = await fleet.serve(script)
        client = await fleet.client()
        client.send(post())
        await until(lambda: engine.requests, "the engine has the request")
        client.send(post(b'{"model":"m","x":"' + b"y" * 300_000 + b'"}'))
        await client.writer.drain()
        await asyncio.sleep(0.05)
        go_on.set()
        answer = await client.answer()
        assert (answer.body, answer.headers["connection"]) == (b"good", "close")
        assert await client.rest() == b""
        assert len(engine.requests) == 1

    play(scenario)


def test_a_bad_request_behind_a_good_one_is_answered_in_its_turn(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain(b"good"))
        client = await fleet.client()
        client.send(post() + b"nonsense\r\n\r\n")
        assert (await client.answer()).body == b"good"
        assert (await client.answer()).status == 400
        assert await client.rest() == b""

    play(scenario)


def test_a_client_that_wants_to_close_is_closed(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain(b"good"))
        client = await fleet.client()
        client.send(post(headers=b"connection: close\r\n") + post())
        answer = await client.answer()
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b""

    play(scenario)


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/nothing"])
def test_head_has_the_length_of_what_get_would_bring_and_no_body(play, path: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.route(model("m"))
        client = await fleet.client()
        client.send(b"GET %b HTTP/1.1\r\nhost: gw\r\n\r\n" % path.encode())
        got = await client.answer()
        client.send(b"HEAD %b HTTP/1.1\r\nhost: gw\r\n\r\n" % path.encode())
        told = await client.answer(bodiless=True)
        assert (told.status, told.headers["content-length"]) == (got.status, str(len(got.body)))
        client.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
        assert (await client.answer()).status == 200  # no byte of a body stood between

    play(scenario)


def test_a_body_where_none_belongs_is_read_and_dropped(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        client = await fleet.client()
        for _ in range(2):
            client.send(
                b"GET /health HTTP/1.1\r\nhost: gw\r\ncontent-length: 26\r\n\r\nGET /v1/models HTTP/1.1\r\n\r"
            )
            assert (await client.answer()).body == b'{"status":"ok"}'

    play(scenario)


def test_a_body_that_announces_too_much_is_refused_before_it_is_read(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        client = await fleet.client()
        client.send(H + b"expect: 100-continue\r\ncontent-length: 200000000\r\n\r\n")
        status, _ = await client.head()
        assert status == 413
        assert "8388608 bytes" in str(error_of(await client.rest())["message"])

    play(scenario)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_gigabyte_is_refused_without_being_kept(play, chunked: bool) -> None:
    async def scenario(fleet: Fleet) -> None:
        client = await fleet.client()
        block = b"x" * 1_000_000
        before = most = fleet.router.rss_mib()
        client.send(
            H + (b"transfer-encoding: chunked\r\n\r\n" if chunked else b"content-length: 1000000000\r\n\r\n")
        )
        for _ in range(1000):
            client.send(chunk(block) if chunked else block)
            await client.writer.drain()
            most = max(most, fleet.router.rss_mib())
        status, _ = await client.head()
        assert status == 413
        assert most - before < 40, "the limit is 8 MiB"

    play(scenario)
