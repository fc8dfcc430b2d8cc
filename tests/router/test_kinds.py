"""Every kind of request that engines serve goes through, whatever its body looks like."""

from __future__ import annotations

import json

import openai
import pytest

from tests.router.support import EVENT_STREAM, Fleet, chunk, plain, post, raw

WAV = b"RIFF\x24\x00\x00\x00WAVEfmt \x00\xff\r\n--nearly\r\n"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/rerank",
        "/v1/score",
        "/v1/tokenize",
        "/v1/audio/speech",
        "/v1/images/generations",
        "/v1/messages",
        "/tokenize",
        "/detokenize",
        "/rerank",
        "/v2/rerank",
        "/score",
        "/classify",
        "/pooling",
    ],
)
def test_each_kind_reaches_the_engine_at_its_own_path(play, path: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(b'{"it":"is"}'))
        answer = await fleet.ask(post(b'{"model":"m", "x":1}', path))
        assert (answer.status, answer.body) == (200, b'{"it":"is"}')
        assert (engine.requests[0].target, engine.requests[0].body) == (path, b'{"model":"m", "x":1}')

    play(scenario)


@pytest.mark.parametrize(
    "path", ["/generate", "/invocations", "/sleep", "/v1/load_lora_adapter", "/abort_request"]
)
def test_what_is_not_for_clients_reaches_no_engine(play, path: str) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain())
        assert (await fleet.ask(post(path=path))).status == 404
        assert not engine.requests

    play(scenario)


def test_a_recording_is_transcribed_from_a_multipart_body(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        (engine,) = await fleet.serve(plain(b'{"text":"hello"}'))
        base = f"http://127.0.0.1:{fleet.router.port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            heard = await client.audio.transcriptions.create(model="m", file=("a.wav", WAV), language="en")
        assert heard.text == "hello"
        assert engine.requests[0].target == "/v1/audio/transcriptions"
        assert WAV in engine.requests[0].body
        assert engine.requests[0].headers["content-type"].startswith("multipart/form-data; boundary=")

    play(scenario)


def test_speech_comes_back_as_the_bytes_that_it_is(play) -> None:
    sound = bytes(range(256)) * 40

    async def scenario(fleet: Fleet) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n"
        await fleet.serve(raw(head, chunk(sound[:5000]), chunk(sound[5000:]), b"0\r\n\r\n"))
        base = f"http://127.0.0.1:{fleet.router.port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            spoken = await client.audio.speech.create(model="m", voice="v", input="hello")
        assert spoken.content == sound

    play(scenario)


def test_responses_are_streamed_to_openais_client(play) -> None:
    events = [
        {
            "type": "response.output_text.delta",
            "delta": "hel",
            "item_id": "i",
            "output_index": 0,
            "content_index": 0,
        },
        {
            "type": "response.output_text.delta",
            "delta": "lo",
            "item_id": "i",
            "output_index": 0,
            "content_index": 0,
        },
    ]
    wire = b"".join(
        b"event: %b\ndata: %b\n\n" % (str(e["type"]).encode(), json.dumps(e).encode()) for e in events
    )

    async def scenario(fleet: Fleet) -> None:
        head = b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"
        (engine,) = await fleet.serve(raw(head, chunk(wire[:50]), chunk(wire[50:]), b"0\r\n\r\n"))
        base = f"http://127.0.0.1:{fleet.router.port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            stream = await client.responses.create(model="m", input="hi", stream=True)
            told = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            assert "".join(told) == "hello"
            with pytest.raises(openai.NotFoundError, match="keeps no answers"):
                await client.responses.retrieve("resp_1")
            with pytest.raises(openai.NotFoundError, match="keeps no answers"):
                await client.responses.cancel("resp_1")
        assert len(engine.requests) == 1

    play(scenario)
