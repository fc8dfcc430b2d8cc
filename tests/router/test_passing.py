"""Requests go to an engine and answers come back, byte for byte."""

from __future__ import annotations

import asyncio
import json

from llmgw.messages.routes import ModelRoute, RouteEndpoint
from tests.router.support import EVENT_STREAM, Fleet, chunk, plain, post, raw

CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"


def test_a_request_reaches_the_engine_with_its_body_untouched(play) -> None:
    body = b'{ "model":"m",\n "x": [1.50, "\\u00e4"] }'

    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(b'{"a":1}'))
        answer = await fleet.ask(
            post(body, "/v1/embeddings?v=2", b"authorization: Bearer client\r\nx-api-key: k\r\nx-mine: 1\r\n")
        )
        assert (answer.status, answer.body) == (200, b'{"a":1}')
        seen = engine.requests[0]
        assert (seen.method, seen.target, seen.body) == ("POST", "/v1/embeddings?v=2", body)
        assert seen.headers["x-mine"] == "1"
        assert seen.headers["host"] == f"127.0.0.1:{engine.port}"
        assert "authorization" not in seen.headers
        assert "x-api-key" not in seen.headers
        outcome = await fleet.outcome()
        assert (outcome.model, outcome.endpoint, outcome.status, outcome.retries) == ("m", "m-0", 200, 0)
        assert outcome.first_byte_s is not None

    play(scenario)


def test_an_event_stream_passes_byte_for_byte_wherever_it_is_split(play) -> None:
    events = b"".join(chunk(b'data: {"n":%d,"t":"\xc3\xa4"}\n\n' % index) for index in range(12))
    wire = CHUNKED_HEAD + events + chunk(b"data: [DONE]\n\n") + b"0\r\nx-trailer: 1\r\n\r\n"
    sizes = [1, 2, 3, 5, 7, 13, 64, len(wire)]

    async def scenario(fleet: Fleet) -> None:
        async def script(seen, reader, writer) -> None:
            size = int(json.loads(seen.body)["size"])
            for start in range(0, len(wire), size):
                writer.write(wire[start : start + size])
                await asyncio.sleep(0)
            await writer.drain()

        await fleet.serve(script)

        async def one(size: int) -> None:
            client = await fleet.client()
            body = b'{"model":"m","stream":true,"size":%d}' % size
            client.send(post(body, "/v1/messages", headers=b"connection: close\r\n"))
            status, headers = await client.head()
            assert status == 200
            assert headers["x-accel-buffering"] == "no"
            assert headers["content-type"] == "text/event-stream"
            assert await client.rest() == wire[len(CHUNKED_HEAD) :]

        await asyncio.gather(*map(one, sizes))

    play(scenario)


def test_the_first_event_arrives_while_the_engine_still_works(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        go_on = asyncio.Event()

        async def script(seen, reader, writer) -> None:
            writer.write(CHUNKED_HEAD + chunk(b"data: 1\n\n"))
            await go_on.wait()
            writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

        await fleet.serve(script)
        client = await fleet.client()
        client.send(post(b'{"model":"m","stream":true}'))
        await client.head()
        assert await client.reader.readexactly(14) == chunk(b"data: 1\n\n")
        go_on.set()
        assert await client.reader.readexactly(19) == chunk(b"data: 2\n\n") + b"0\r\n\r\n"
        assert (await fleet.outcome()).stream

    play(scenario)


def test_connections_are_kept_on_both_sides(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain())
        client = await fleet.client()
        for _ in range(5):
            client.send(post())
            assert (await client.answer()).status == 200
        assert engine.connections == 1

    play(scenario)


def test_an_answer_without_a_length_is_passed_and_ends_with_the_connection(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(raw(b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nabc", b"def", close=True))
        answer = await fleet.ask(post())
        assert (answer.body, answer.closed) == (b"abcdef", True)
        assert answer.headers["connection"] == "close"

    play(scenario)


def test_a_client_of_http_1_0_gets_no_chunks(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        wire = CHUNKED_HEAD + chunk(b"data: 1\n\n") + chunk(b"data: 2\n\n") + b"0\r\n\r\n"
        await fleet.serve(raw(wire[:90], wire[90:100], wire[100:]))
        answer = await fleet.ask(post(version="1.0"))
        assert answer.body == b"data: 1\n\ndata: 2\n\n"
        assert "transfer-encoding" not in answer.headers

    play(scenario)


def test_interim_answers_and_hop_by_hop_headers_stay_on_their_hop(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(
            raw(
                b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 201 Created\r\nx-mine: 1\r\n"
                b"x-request-id: engines\r\nconnection: keep-alive\r\nkeep-alive: timeout=5\r\n"
                b"content-length: 2\r\n\r\nok"
            )
        )
        answer = await fleet.ask(
            post(headers=b"connection: keep-alive, x-hop\r\nx-hop: 1\r\nte: trailers\r\nx-request-id: abc-1\r\n")
        )
        assert (answer.status, answer.body) == (201, b"ok")
        assert answer.headers["x-request-id"] == "abc-1"
        assert answer.headers["x-mine"] == "1"
        assert "keep-alive" not in answer.headers
        seen = engine.requests[0].headers
        assert seen["x-request-id"] == "abc-1"
        assert not {"x-hop", "te", "connection"} & set(seen)

    play(scenario)


def test_a_request_id_that_could_be_used_to_forge_logs_is_replaced(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain())
        answer = await fleet.ask(post(headers=b"x-request-id: a b\t{}\r\n"))
        made = answer.headers["x-request-id"]
        assert made.startswith("req-")
        assert engine.requests[0].headers["x-request-id"] == made

    play(scenario)


def test_a_static_endpoint_gets_its_key_its_path_and_its_name_of_the_model(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(plain())
        endpoint = RouteEndpoint(
            id="static:m:0",
            host="localhost",
            port=engine.port,
            base_path="/prefix/",
            api_key="secret",
            upstream_model="vendor/m-2",
        )
        await fleet.route(ModelRoute(name="m", aliases=["gpt"], endpoints=[endpoint]))
        answer = await fleet.ask(post(b'{ "model": "gpt", "n":1 }', headers=b"authorization: Bearer mine\r\n"))
        assert answer.status == 200
        seen = engine.requests[0]
        assert seen.target == "/prefix/v1/chat/completions"
        assert seen.headers["authorization"] == "Bearer secret"
        assert seen.body == b'{ "model": "vendor/m-2", "n":1 }'
        assert (await fleet.outcome()).model == "m"
        assert "secret" not in fleet.router.log_path.read_text()

    play(scenario)


def test_bodies_in_chunks_and_multipart_bodies_are_passed(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain())
        body = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--B--\r\n'
        request = (
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n"
            b"content-type: multipart/form-data; boundary=B\r\n\r\n"
            + chunk(body[:20])
            + chunk(body[20:])
            + b"0\r\n\r\n"
        )
        assert (await fleet.ask(request)).status == 200
        assert engine.requests[0].body == body
        assert engine.requests[0].headers["content-type"] == "multipart/form-data; boundary=B"

    play(scenario)


def test_a_client_that_asks_before_sending_its_body_is_told_to_go_on(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain())
        client = await fleet.client()
        head, _, body = post(headers=b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        assert (await client.head())[0] == 100
        client.send(body)
        assert (await client.answer()).status == 200

    play(scenario)


def test_a_client_that_waits_behind_its_own_request_is_told_to_go_on_when_that_is_answered(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain())
        client = await fleet.client()
        head, _, body = post(headers=b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
        for earlier in (post(), b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n"):
            client.send(earlier + head + b"\r\n\r\n")
            assert (await client.answer()).status == 200
            assert (await client.answer()).status == 100
            client.send(body)
            assert (await client.answer()).status == 200

    play(scenario)


def test_an_offer_to_speak_http_2_is_answered_in_http_1_1(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain())
        client = await fleet.client()
        offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
        for _ in range(2):
            client.send(post(headers=offer))
            assert (await client.answer()).status == 200
        assert engine.requests[1].body == b'{"model":"m"}'
        assert not {"upgrade", "http2-settings"} & set(engine.requests[0].headers)

    play(scenario)


def test_a_slow_client_holds_the_engine_back_and_memory_stays_bounded(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        written = 0
        block = chunk(b"x" * 65536)

        async def script(seen, reader, writer) -> None:
            nonlocal written
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(1600):
                writer.write(block)
                await writer.drain()
                written += len(block)
            writer.write(b"0\r\n\r\n")

        await fleet.serve(script)
        client = await fleet.client()
        before = fleet.router.rss_mib()
        client.send(post(headers=b"connection: close\r\n"))
        client.writer.transport.pause_reading()
        last = -1
        while written != last:  # the engine stands still once every buffer on the way is full
            last = written
            await asyncio.sleep(0.2)
        assert 0 < written < 60 * 1024**2
        assert fleet.router.rss_mib() - before < 30
        client.writer.transport.resume_reading()
        await client.head()
        read = 0
        while data := await client.reader.read(1 << 20):
            read += len(data)
        assert read == 1600 * len(block) + 5

    play(scenario)


def test_a_large_request_reaches_a_slow_engine_whole(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain())
        body = b'{"model":"m","x":"' + b"y" * 6_000_000 + b'"}'
        assert (await fleet.ask(post(body))).status == 200
        assert engine.requests[0].body == body

    play(scenario)


def test_requests_are_spread_over_endpoints_and_an_ipv6_endpoint_works(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engines = await fleet.serve(plain(), plain())
        for _ in range(40):
            await fleet.ask(post())
        assert all(len(engine.requests) > 8 for engine in engines)
        server = await asyncio.start_server(engines[0]._serve, "::1", 0)
        endpoint = RouteEndpoint(id="six", host="::1", port=server.sockets[0].getsockname()[1])
        await fleet.route(ModelRoute(name="m", endpoints=[endpoint]))
        assert (await fleet.ask(post())).status == 200
        assert engines[0].requests[-1].headers["host"] == f"[::1]:{endpoint.port}"
        server.close()

    play(scenario)
