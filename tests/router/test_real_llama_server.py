"""llama.cpp's own server behind a router: the clients' libraries, natively and in translation."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from tests.engines.running import Program, program
from tests.router.support import Fleet, model

ENGINES = Path(__file__).parent.parent / "engines"
ASK: Any = {"max_tokens": 12, "messages": [{"role": "user", "content": "Where is the sun?"}]}
GREEDY: Any = {"extra_body": {"temperature": 0, "ignore_eos": True}}

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def llama(llama_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    file = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    subprocess.run([llama_python, str(ENGINES / "tiny_gguf.py"), str(file)], check=True)
    argv = [llama_python, str(ENGINES / "llama_server.py"), "--model", str(file), "--alias", "m"]
    argv += ["--host", "127.0.0.1", "--port", "0", "--ctx-size", "512", "--device", "none"]
    with program(argv) as running:
        running.wait_for(r"listening on (\S+)\n", 60)
        yield running


async def serve(fleet: Fleet, llama: Program) -> str:
    """The same engine as `native`, asked as it is, and as `translated`."""
    port = int(llama.wait_for(r"listening on (\S+)\n")[1].rstrip("/").rpartition(":")[2])
    native, translated = model("native", port), model("translated", port)
    await fleet.route(native, msgspec.structs.replace(translated, anthropic="translate"))
    return f"http://127.0.0.1:{fleet.router.port}"


def test_a_message_is_the_same_natively_and_in_translation(play, llama: Program) -> None:
    async def scenario(fleet: Fleet) -> None:
        base = await serve(fleet, llama)
        async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
            texts = []
            for name in ("native", "translated"):
                whole = await client.messages.create(model=name, **ASK, **GREEDY)
                async with client.messages.stream(model=name, **ASK, **GREEDY) as stream:
                    streamed = "".join([piece async for piece in stream.text_stream])
                    final = await stream.get_final_message()
                assert whole.content[0].text == streamed == final.content[0].text
                assert whole.stop_reason == final.stop_reason == "max_tokens"
                assert whole.usage.output_tokens == final.usage.output_tokens == 12
                taken = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
                texts.append((streamed, taken))
            assert texts[0] == texts[1]
            assert texts[0][0]

    play(scenario)


def test_its_errors_are_those_of_the_api_that_was_asked(play, llama: Program) -> None:
    async def scenario(fleet: Fleet) -> None:
        base = await serve(fleet, llama)
        long: Any = {"max_tokens": 4, "messages": [{"role": "user", "content": "sun " * 2000}]}
        async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
            for name in ("native", "translated"):
                with pytest.raises(anthropic.BadRequestError) as caught:
                    await client.messages.create(model=name, **long)
                assert caught.value.body["error"]["type"] == "invalid_request_error"
                assert "context" in caught.value.body["error"]["message"]
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client_:
            with pytest.raises(openai.BadRequestError) as refused:
                await client_.chat.completions.create(model="native", **long)
            assert "context" in refused.value.message

    play(scenario)


def test_openais_streaming_helper_follows_it(play, llama: Program) -> None:
    async def scenario(fleet: Fleet) -> None:
        base = await serve(fleet, llama)
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
            async with client.chat.completions.stream(model="native", **ASK, **GREEDY) as stream:
                pieces = [event.delta async for event in stream if event.type == "content.delta"]
                snapshot = stream.current_completion_snapshot
            assert "".join(pieces) == snapshot.choices[0].message.content
            assert snapshot.choices[0].finish_reason == "length"

    play(scenario)


def test_tokens_are_counted_by_its_own_count(play, llama: Program) -> None:
    async def scenario(fleet: Fleet) -> None:
        base = await serve(fleet, llama)
        async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as client:
            counted = await client.messages.count_tokens(model="native", messages=ASK["messages"])
            answered = await client.messages.create(model="translated", **ASK, **GREEDY)
            taken = answered.usage.input_tokens + (answered.usage.cache_read_input_tokens or 0)
            assert counted.input_tokens == taken

    play(scenario)
