"""A router asks engines for usage, hands on what clients asked for, and tells what each request took."""

from __future__ import annotations

import asyncio
import json

import pytest

from llmgw.messages.routes import ModelRoute, RouteEndpoint, UsageStored
from tests.router.support import (
    EVENT_STREAM,
    Engine,
    Fleet,
    chunk,
    fleet_of,
    hang,
    model,
    plain,
    post,
    raw,
    until,
)

HEAD = b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"
USAGE = (
    b'{"prompt_tokens":12,"total_tokens":20,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":4}}'
)
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
EXTRA = b'data: {"choices":[],"usage":' + USAGE + b"}\n\n"
DONE = b"data: [DONE]\n\n"
ASKS = post(b'{"model":"m","stream":true}')
ASKS_ITSELF = post(b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}')


async def like_vllm(seen, reader, writer) -> None:
    """Streams with usage for those who ask."""
    options = json.loads(seen.body).get("stream_options") or {}
    extra = chunk(EXTRA) if options.get("include_usage") else b""
    for part in (HEAD + chunk(TOKEN), chunk(TOKEN), extra, chunk(DONE), b"0\r\n\r\n"):
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.002)


def test_a_client_that_did_not_ask_for_usage_gets_the_stream_without_and_it_is_counted(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(like_vllm)
        answer = await fleet.ask(ASKS)
        assert answer.body == TOKEN + TOKEN + DONE
        assert engine.requests[0].body == b'{"stream_options":{"include_usage":true},"model":"m","stream":true}'
        outcome = await fleet.outcome()
        assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens) == (12, 4, 8)
        assert not outcome.estimated

    play(scenario)


def test_a_client_that_asked_for_usage_gets_what_the_engine_sent(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(like_vllm)
        answer = await fleet.ask(ASKS_ITSELF)
        assert answer.raw_body == chunk(TOKEN) * 2 + chunk(EXTRA) + chunk(DONE) + b"0\r\n\r\n"
        assert engine.requests[0].body == b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}'
        outcome = await fleet.outcome()
        assert (outcome.prompt_tokens, outcome.completion_tokens) == (12, 8)

    play(scenario)


def test_other_paths_are_asked_for_nothing_and_read_all_the_same(play) -> None:
    body = b'{"model":"m","stream":true}'

    async def scenario(fleet: Fleet) -> None:
        last = b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":5,"output_tokens":6}}}\n\n'
        (engine,) = await fleet.serve(raw(HEAD + chunk(last), b"0\r\n\r\n"))
        assert (await fleet.ask(post(body, "/v1/responses"))).body == last
        assert engine.requests[0].body == body
        outcome = await fleet.outcome()
        assert (outcome.prompt_tokens, outcome.completion_tokens) == (5, 6)

    play(scenario)


@pytest.mark.parametrize(
    ("path", "usage", "tokens"),
    [
        ("chat/completions", b'"usage":' + USAGE, (12, 4, 8)),
        ("responses", b'"usage":{"input_tokens":3,"output_tokens":2}', (3, None, 2)),
        ("messages", b'"usage":{"input_tokens":3,"cache_read_input_tokens":5,"output_tokens":2}', (8, 5, 2)),
        ("embeddings", b'"usage":{"prompt_tokens":3,"total_tokens":3}', (3, None, None)),
        ("rerank", b'"usage":{"total_tokens":9}', (9, None, None)),
        ("tokenize", b'"count":9', (None, None, None)),
    ],
)
def test_an_answer_that_is_no_stream_is_read_and_not_changed(play, path: str, usage: bytes, tokens) -> None:
    async def scenario(fleet: Fleet) -> None:
        body = b'{"x":1,' + usage + b',"data":[]}'
        await fleet.serve(plain(body))
        assert (await fleet.ask(post(path=f"/v1/{path}"))).raw_body == body
        outcome = await fleet.outcome()
        assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.completion_tokens) == tokens
        assert not outcome.estimated

    play(scenario)


def test_an_engine_that_answers_a_streamed_request_with_an_error_costs_nothing(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        body = b'{"error":{"message":"stream_options?"},"usage":' + USAGE + b"}"
        await fleet.serve(plain(body, status=400))
        answer = await fleet.ask(ASKS)
        assert (answer.status, answer.body) == (400, body)
        outcome = await fleet.outcome()
        assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.estimated) == (None, None, False)

    play(scenario)


def test_an_endpoint_that_is_not_to_be_asked_gets_the_body_as_it_came_and_its_stream_is_estimated(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(like_vllm)
        endpoint = RouteEndpoint(id="m-0", host="127.0.0.1", port=engine.port, ask_usage=False)
        await fleet.route(ModelRoute(name="m", endpoints=[endpoint]))
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"' + b"words " * 100 + b'"}]}'
        answer = await fleet.ask(post(body))
        assert answer.body == TOKEN + TOKEN + DONE
        assert engine.requests[0].body == body
        outcome = await fleet.outcome()
        assert outcome.estimated
        assert (outcome.prompt_tokens, outcome.completion_tokens) == (len(body) // 4, 1)

    play(scenario)


def test_a_stream_that_breaks_is_estimated_by_what_came(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engine = await fleet.engine(raw(HEAD + chunk(TOKEN), *[chunk(TOKEN)] * 20, abort=True))
        await fleet.route(model("m", engine))
        answer = await fleet.ask(ASKS)
        assert answer.body.startswith(TOKEN * 21)
        assert b"stream_broken" in answer.body
        outcome = await fleet.outcome()
        assert (outcome.status, outcome.estimated, outcome.completion_tokens) == (502, True, 20)
        assert outcome.prompt_tokens == len(b'{"model":"m","stream":true}') // 4

    play(scenario)


def test_a_client_that_leaves_is_counted_by_what_it_got_and_one_before_any_answer_by_its_prompt(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def endless(seen, reader, writer) -> None:
            writer.write(HEAD + chunk(TOKEN) * 10)
            await reader.read()
            writer.close()

        await fleet.serve(endless)
        client = await fleet.client()
        client.send(ASKS)
        await client.head()
        await client.reader.readexactly(10 * len(chunk(TOKEN)))
        client.close()
        outcome = await fleet.outcome()
        assert (outcome.status, outcome.estimated) == (499, True)
        assert outcome.completion_tokens == 9
        fleet.telemetry.clear()
        (engine,) = await fleet.serve(hang)
        client = await fleet.client()
        client.send(post(b'{"model":"m","prompt":"' + b"x" * 400 + b'"}', "/v1/completions"))
        await until(lambda: engine.requests, "the engine has the request")
        client.close()
        outcome = await fleet.outcome()
        assert (outcome.status, outcome.estimated, outcome.completion_tokens) == (499, True, 0)
        assert outcome.prompt_tokens == 106

    play(scenario)


def test_a_client_that_leaves_behind_the_usage_chunk_is_counted_exactly(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        async def without_end(seen, reader, writer) -> None:
            writer.write(HEAD + chunk(TOKEN) + chunk(EXTRA) + chunk(b": still here\n\n"))
            await reader.read()
            writer.close()

        await fleet.serve(without_end)
        client = await fleet.client()
        client.send(ASKS)
        await client.head()
        await client.reader.readuntil(b"still here")
        client.close()
        outcome = await fleet.outcome()
        assert (outcome.status, outcome.estimated) == (499, False)
        assert (outcome.prompt_tokens, outcome.completion_tokens) == (12, 8)

    play(scenario)


def test_a_second_engine_is_asked_for_usage_too(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        engines: list[Engine] = await fleet.serve(plain(status=503), plain(status=503), like_vllm)
        for _ in range(20):
            answer = await fleet.ask(ASKS)
            if answer.status == 200:
                assert answer.body == TOKEN + TOKEN + DONE
        for engine in engines:
            assert all(b"include_usage" in seen.body for seen in engine.requests)

    play(scenario)


def test_a_client_of_http_1_0_gets_the_stream_without_the_extra_chunk_and_without_chunks(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(like_vllm)
        answer = await fleet.ask(post(b'{"model":"m","stream":true}', version="1.0"))
        assert answer.body == TOKEN + TOKEN + DONE
        assert (await fleet.outcome()).completion_tokens == 8

    play(scenario)


def test_usage_is_told_until_it_is_acknowledged_and_then_never_again(new_router) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), fleet_of(new_router()) as fleet:
            await fleet.serve(plain(b'{"usage":' + USAGE + b"}"))
            counted = {}

            def told(acknowledge: bool) -> int:
                for frame in fleet.telemetry:
                    batch = frame.usage
                    if batch is not None:
                        assert counted.setdefault(batch.number, batch) == batch
                        if acknowledge:
                            fleet.link.send_stored(UsageStored(ledger=batch.ledger, number=batch.number))
                return sum(row.requests for batch in counted.values() for row in batch.rows)

            await fleet.ask(post())
            await until(lambda: told(False), "the first batch")
            await fleet.unlink()  # the server dies before it says that it has it
            fleet.telemetry.clear()
            for _ in range(2):
                await fleet.ask(post())
            fleet.linked = asyncio.create_task(fleet.link.run())
            await until(lambda: fleet.telemetry and told(False), "the batch again")
            await until(lambda: told(True) == 3, "all three requests are told")
            assert sorted(counted) == list(range(1, len(counted) + 1))

    asyncio.run(main())


def test_a_router_that_is_killed_while_no_server_lives_has_its_usage_told_by_the_next(
    new_router, tmp_path
) -> None:
    async def main() -> None:
        router = new_router()
        async with asyncio.timeout(30), fleet_of(router) as fleet:
            await fleet.serve(plain(b'{"usage":' + USAGE + b"}"))
            await fleet.unlink()
            for _ in range(3):
                await fleet.ask(post())
            await until(router.state.joinpath("router-0.usage").exists, "usage is on the disk")
            router.stop()
        async with asyncio.timeout(30), fleet_of(new_router(state=router.state)) as fleet:
            fleet.linked = fleet.linked or asyncio.create_task(fleet.link.run())
            await fleet.unlink()
            fleet.linked = asyncio.create_task(fleet.link.run())
            await until(lambda: any(frame.usage for frame in fleet.telemetry), "its usage is told")
            (row,) = next(frame.usage for frame in fleet.telemetry if frame.usage).rows
            assert (row.requests, row.prompt_tokens, row.completion_tokens) == (3, 36, 24)

    asyncio.run(main())
