"""The simulated engine's API as its clients see it: the openai package, and plain HTTP for the wrong requests."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import openai
import pytest

from tests.engines.running import Program, http, metric, sim_engine, until

SAY: Any = [{"role": "user", "content": "please tell a story about the old lighthouse keeper now"}]
OPENING = "This is tiny on r1-0. You said: please tell a story about the old lighthouse"
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 2},
                "unit": {"enum": ["celsius", "kelvin"]},
                "hours": {"type": "array", "items": {"type": "number"}, "minItems": 1},
            },
        },
    },
}


def test_models_are_listed_with_their_aliases(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "small"]


def test_an_answer_says_who_speaks_and_what_was_asked(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=SAY, max_tokens=16)
    choice = answer.choices[0]
    assert choice.message.content == f"{OPENING} word1"
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (13, 16)


def test_a_stream_is_the_same_answer_in_pieces_role_first(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=SAY, max_tokens=16, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == f"{OPENING} word1"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 16 + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 16


def test_a_prompt_that_begins_as_an_earlier_one_is_found_in_the_cache_in_whole_blocks(
    client: openai.OpenAI,
) -> None:
    def cached(content: str, model: str = "tiny") -> int | None:
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": content}], max_tokens=1
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens

    shared = " ".join(f"shared{number}" for number in range(40))
    assert cached(shared) == 0
    assert cached(shared + " and more") == 32
    assert cached("other " + shared) == 0
    assert cached(" ".join(shared.split()[:32])) == 16, "the last token is always computed"


def test_usage_is_streamed_only_to_those_who_asked(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=SAY, max_tokens=4, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_the_bytes_of_a_stream_are_events_that_end_with_done(engine: Program) -> None:
    body = {"model": "tiny", "messages": SAY, "max_tokens": 3, "stream": True}
    answer = http.post(f"{engine.url()}/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: ")) for event in events[:-2])


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_before_a_stop_string(client: openai.OpenAI, stream: bool) -> None:
    answer: Any = client.chat.completions.create(
        model="tiny", messages=SAY, stop=["word2", "d1 wo"], stream=stream
    )
    if stream:
        chunks = list(answer)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert (text, reason) == (f"{OPENING} wor", "stop")


def test_without_a_limit_an_answer_ends_by_itself_and_ignore_eos_goes_on(client: openai.OpenAI) -> None:
    short = client.chat.completions.create(model="tiny", messages=SAY)
    assert short.choices[0].finish_reason == "stop"
    assert short.usage is not None
    assert short.usage.completion_tokens == 64
    forced = client.chat.completions.create(
        model="tiny", messages=SAY, max_completion_tokens=90, extra_body={"ignore_eos": True}
    )
    assert forced.choices[0].finish_reason == "length"
    assert forced.usage is not None
    assert forced.usage.completion_tokens == 90


@pytest.mark.parametrize("stream", [False, True])
def test_n_choices_differ_and_are_all_counted(client: openai.OpenAI, stream: bool) -> None:
    answer: Any = client.chat.completions.create(model="tiny", messages=SAY, max_tokens=9, n=3, stream=stream)
    texts = {0: "", 1: "", 2: ""}
    if stream:
        for chunk in answer:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        texts = {choice.index: choice.message.content for choice in answer.choices}
        assert answer.usage.completion_tokens == 27
    assert len(set(texts.values())) == 3
    assert all(len(text.split()) == 9 for text in texts.values())


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_tool_is_called_with_arguments_that_fit_its_schema(client: openai.OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(model="tiny", messages=SAY, tools=[TOOL], tool_choice=choice)
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    expected = {"city": "example", "days": 2, "unit": "celsius", "hours": [1]}
    assert json.loads(call.function.arguments) == expected

    arguments = ""
    with client.chat.completions.stream(model="tiny", messages=SAY, tools=[TOOL], tool_choice=choice) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                arguments += event.arguments_delta
        final = stream.get_final_completion()
    assert json.loads(arguments) == expected
    assert final.choices[0].message.tool_calls
    assert final.choices[0].message.tool_calls[0].function.name == "weather"


def test_tools_that_nothing_forces_leave_the_answer_a_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=SAY, tools=[TOOL], max_tokens=3)
    assert answer.choices[0].message.content == "This is tiny"


def test_messages_may_be_lists_of_parts(client: openai.OpenAI) -> None:
    parts: Any = [
        {"type": "text", "text": "what is this"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    answer = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": parts}])
    assert "You said: what is this word1" in (answer.choices[0].message.content or "")


def test_completions_answer_each_prompt_streamed_or_not(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="small", prompt=["one", "two"], max_tokens=8)
    assert [choice.text for choice in answer.choices] == [
        "This is small on r1-0. You said: one",
        "This is small on r1-0. You said: two",
    ]
    chunks = list(client.completions.create(model="small", prompt=[1, 2], max_tokens=8, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "This is small on r1-0. You said: token1"


def test_embeddings_are_vectors_of_length_one_in_both_encodings(client: openai.OpenAI) -> None:
    coded = client.embeddings.create(model="tiny", input=["a", "b"], dimensions=16)
    plain = client.embeddings.create(model="tiny", input="a", dimensions=16, encoding_format="float")
    assert len(coded.data) == 2
    assert coded.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    assert coded.data[0].embedding != pytest.approx(coded.data[1].embedding, abs=1e-2)
    assert sum(value * value for value in plain.data[0].embedding) == pytest.approx(1)


def test_an_unknown_model_is_a_404_that_names_those_that_exist(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"`gpt-4` does not exist\. Valid aliases: tiny, small"):
        client.chat.completions.create(model="gpt-4", messages=SAY)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", b"{not json", "not JSON"),
        ("/v1/chat/completions", b"", "empty"),
        ("/v1/chat/completions", b"[]", "not a JSON object"),
        ("/v1/chat/completions", b"[" * 100_000, "not JSON"),
        ("/v1/chat/completions", b"{}", "messages"),
        ("/v1/chat/completions", b'{"messages":[]}', "messages"),
        ("/v1/chat/completions", b'{"messages":[{"content":"x"}],"max_tokens":0}', "at least 1, got 0"),
        ("/v1/chat/completions", b'{"messages":[{"content":"x"}],"max_tokens":9999}', "at most 2000"),
        ("/v1/chat/completions", b'{"messages":[{"content":"x"}],"stream":"yes"}', "stream"),
        ("/v1/chat/completions", b'{"messages":[{"content":"x"}],"stop":[1]}', "stop"),
        ("/v1/chat/completions", b'{"messages":[{"content":"x"}],"temperature":-1}', "temperature"),
        ("/v1/chat/completions", b'{"messages":[{"content":"x"}],"tool_choice":"required"}', "tools"),
        ("/v1/chat/completions", b'{"messages":[{"content":"%s"}]}' % (b"x " * 2001), "maximum context length"),
        ("/v1/completions", b"{}", "prompt"),
        ("/v1/embeddings", b'{"input":{}}', "input"),
    ],
)
def test_a_wrong_body_is_a_400_in_openais_shape(engine: Program, path: str, body: bytes, words: str) -> None:
    answer = http.post(engine.url() + path, content=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_unknown_paths_and_methods_are_refused_as_vllm_does(engine: Program) -> None:
    assert http.get(f"{engine.url()}/v1/nothing").json() == {"detail": "Not Found"}
    answer = http.get(f"{engine.url()}/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_health_version_and_request_ids_are_like_vllms(engine: Program) -> None:
    health = http.get(f"{engine.url()}/health")
    assert (health.status_code, health.content) == (200, b"")
    assert http.get(f"{engine.url()}/version").json()["version"].startswith("sim-")
    answer = http.post(
        f"{engine.url()}/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers={"X-Request-Id": "abc"}
    )
    assert answer.json()["id"] == "cmpl-abc"


def test_a_body_that_is_too_large_is_a_413_and_bytes_that_are_no_http_a_400(engine: Program) -> None:
    def body() -> Any:
        for _ in range(65):
            yield b"x" * 1024 * 1024

    assert http.post(f"{engine.url()}/v1/completions", content=body()).status_code == 413
    with socket.create_connection(("127.0.0.1", engine.port()), timeout=20) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_requests_on_one_connection_are_answered_in_order(engine: Program) -> None:
    bodies = [b'{"prompt":"%d","max_tokens":8}' % number for number in range(6)]
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", engine.port()), timeout=20) as sock:
        sock.sendall(b"".join(head % len(body) + body for body in bodies))
        received = b""
        while received.count(b'"usage"') < 6:
            data = sock.recv(65536)
            assert data
            received += data
    assert [received.index(b"said: %d" % number) for number in range(6)] == sorted(
        received.index(b"said: %d" % number) for number in range(6)
    )


def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection(engine: Program) -> None:
    body = b'{"prompt":"x","max_tokens":3,"stream":true}'
    with socket.create_connection(("127.0.0.1", engine.port()), timeout=20) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        received = b""
        while data := sock.recv(65536):
            received += data
    assert b"transfer-encoding" not in received
    assert received.endswith(b"data: [DONE]\n\n")


def test_metrics_move_while_a_stream_runs_and_a_client_that_leaves_ends_it() -> None:
    with sim_engine("--tokens-per-s", "100") as running:
        body = {"messages": SAY, "max_tokens": 30_000, "ignore_eos": True, "stream": True}
        with http.stream("POST", f"{running.url()}/v1/chat/completions", json=body) as stream:
            pieces = stream.iter_bytes()
            next(pieces)
            until(lambda: _tokens(running) > 5, "tokens in the metrics")
            page = _metrics(running)
            assert metric(page, "vllm:num_requests_running", engine="0", model_name="tiny") == 1
            assert metric(page, "vllm:prompt_tokens_total") == 13
            assert metric(page, "vllm:time_to_first_token_seconds_count") == 1
            assert 0 < metric(page, "vllm:kv_cache_usage_perc") < 1
        until(lambda: metric(_metrics(running), "vllm:num_requests_running") == 0, "the stream's end", 2)
        assert metric(_metrics(running), "sim:requests_aborted_total") == 1
        assert metric(_metrics(running), "vllm:kv_cache_usage_perc") == 0
        assert metric(_metrics(running), "vllm:request_success_total", finished_reason="length") == 0


def test_a_client_that_leaves_before_a_plain_answer_frees_its_place_for_the_next() -> None:
    with sim_engine("--tokens-per-s", "10", "--max-num-seqs", "1") as running:
        body = {"prompt": "x", "max_tokens": 30_000, "ignore_eos": True}
        with pytest.raises(httpx.ReadTimeout):
            http.post(f"{running.url()}/v1/completions", json=body, timeout=0.3)
        http.post(f"{running.url()}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=20)
        assert metric(_metrics(running), "sim:requests_aborted_total") == 1
        assert metric(_metrics(running), "vllm:request_success_total", finished_reason="length") == 1


def test_requests_beyond_the_places_wait_and_are_seen_waiting() -> None:
    with sim_engine("--tokens-per-s", "10", "--max-num-seqs", "1") as running:
        body = {"prompt": "x", "max_tokens": 30_000, "ignore_eos": True, "stream": True}
        url = f"{running.url()}/v1/completions"
        with http.stream("POST", url, json=body), http.stream("POST", url, json=body):
            until(lambda: metric(_metrics(running), "vllm:num_requests_waiting") == 1, "one waiting")
            assert metric(_metrics(running), "vllm:num_requests_running") == 1


def _metrics(running: Program) -> str:
    return http.get(f"{running.url()}/metrics").text


def _tokens(running: Program) -> float:
    return metric(_metrics(running), "vllm:generation_tokens_total")


def test_with_a_key_it_answers_only_those_who_know_it_as_vllm_does() -> None:
    with sim_engine(LLMGW_SIM_API_KEY="s3cr3t") as running:
        url = running.url()
        body = {"model": "tiny", "prompt": "Hi", "max_tokens": 1}
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cr3t"}):
            refused = http.post(f"{url}/v1/completions", json=body, headers=headers)
            assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
        headers = {"authorization": "Bearer s3cr3t"}
        assert http.post(f"{url}/v1/completions", json=body, headers=headers).status_code == 200
        assert http.get(f"{url}/v1/models").status_code == 401
        assert http.get(f"{url}/health").status_code == http.get(f"{url}/metrics").status_code == 200
        assert "s3cr3t" not in running.output + running.errors
