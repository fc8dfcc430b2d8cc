"""What else than chat clients ask of a fleet, and what they are told about its models."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.endtoend.conftest import RunningFleet, until


@pytest.fixture(scope="module")
def client(fleet: RunningFleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.demo.api}/v1", api_key="none", max_retries=0)


def post(fleet: RunningFleet, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{fleet.demo.api}{path}", json={"model": "small", **body}, trust_env=False)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_models_tell_their_context_length_as_the_engine_does_and_what_they_are_for(fleet: RunningFleet) -> None:
    def listed() -> dict[str, Any]:
        entries = httpx.get(f"{fleet.demo.api}/v1/models", trust_env=False).json()["data"]
        return {entry["id"]: entry for entry in entries}

    until(lambda: listed()["small"]["max_model_len"])
    entry = listed()["small"]
    assert (entry["max_model_len"], entry["max_input_tokens"]) == (32768, 32768)
    assert entry["kinds"] == ["chat", "completions", "messages"]
    assert (entry["root"], entry["ready"]) == ("demo/small", True)


def test_both_clients_read_the_same_list(fleet: RunningFleet, client: openai.OpenAI) -> None:
    other = anthropic.Anthropic(base_url=fleet.demo.api, api_key="none", max_retries=0)
    names = [model.id for model in client.models.list()]
    assert names == [model.id for model in other.models.list()] == ["big", "demo/big", "demo/small", "small"]
    assert other.models.retrieve("small").display_name == "small"
    assert client.models.retrieve("demo/small").id == "demo/small"


def test_documents_are_ranked(fleet: RunningFleet) -> None:
    documents = ["nothing of it", "red fish blue fish", "one red fish"]
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        told = post(fleet, path, query="one red fish", documents=documents, top_n=2)
        assert [each["index"] for each in told["results"]] == [2, 1]
        assert told["results"][0]["document"]["text"] == "one red fish"


def test_pairs_are_scored(fleet: RunningFleet) -> None:
    for path in ("/v1/score", "/score"):
        first, second = post(fleet, path, text_1="a b", text_2=["a b", "c d"])["data"]
        assert first["score"] > second["score"]


def test_texts_and_messages_are_tokenized(fleet: RunningFleet) -> None:
    assert post(fleet, "/tokenize", prompt="one two three")["count"] == 3
    counted = post(fleet, "/tokenize", messages=[{"role": "user", "content": "one two three"}])
    assert counted["count"] == 6  # with what the template adds
    assert post(fleet, "/detokenize", tokens=[1, 2]) == {"prompt": "token1 token2"}


def test_tokens_of_messages_are_counted(fleet: RunningFleet) -> None:
    other = anthropic.Anthropic(base_url=fleet.demo.api, api_key="none", max_retries=0)
    hello: list[Any] = [{"role": "user", "content": "one two three"}]
    counted = other.messages.count_tokens(model="small", messages=hello)
    answered = other.messages.create(model="small", messages=hello, max_tokens=1)
    assert counted.input_tokens == answered.usage.input_tokens == 6


def test_completions_are_streamed(client: openai.OpenAI) -> None:
    parts = client.completions.create(model="small", prompt="one two", max_tokens=12, stream=True)
    assert "one two" in "".join(part.choices[0].text for part in parts if part.choices)


def test_openais_streaming_helper_puts_a_tool_call_together(client: openai.OpenAI) -> None:
    parameters = {"type": "object", "properties": {"place": {"type": "string"}}, "additionalProperties": False}
    with client.chat.completions.stream(
        model="small",
        messages=[{"role": "user", "content": "the weather?"}],
        tools=[{"type": "function", "function": {"name": "weather", "parameters": parameters}}],
        tool_choice={"type": "function", "function": {"name": "weather"}},
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = final.choices[0].message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("weather", '{"place": "example"}')
    assert final.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("body", "raised", "says"),
    [
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 40_000}]}, openai.BadRequestError, "context length"),
        ({"model": "none"}, openai.NotFoundError, "demo/small"),
    ],
)
def test_openais_client_raises_its_own_classes(
    client: openai.OpenAI, body: dict[str, Any], raised: type[openai.APIStatusError], says: str
) -> None:
    asked: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "hi"}], **body}
    with pytest.raises(raised) as caught:
        client.chat.completions.create(**asked)
    assert says in caught.value.message
    assert caught.value.request_id
