"""Anthropic's own client, unchanged, against the fleet's engines, which serve chat completions only."""

from __future__ import annotations

import anthropic
import pytest

from tests.endtoend.conftest import RunningFleet

HELLO = [{"role": "user", "content": "hello there"}]
TOOLS = [
    {
        "name": "weather",
        "description": "The weather of a place",
        "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
    }
]


@pytest.fixture(scope="module")
def client(fleet: RunningFleet) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=fleet.demo.api, api_key="none", max_retries=0)


@pytest.mark.parametrize("model", ["demo/big", "small"])
def test_a_message_is_answered(client: anthropic.Anthropic, model: str) -> None:
    answer = client.messages.create(model=model, max_tokens=12, messages=HELLO, system="Be brief.")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", model)
    (block,) = answer.content
    assert block.type == "text"
    assert "hello there" in block.text
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == 12
    assert answer.usage.input_tokens > 0
    assert answer._request_id


def test_a_stream_is_told_by_the_streaming_helper(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="small", max_tokens=12, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text
    assert "hello there" in text
    assert final.stop_reason == "max_tokens"
    assert (final.usage.output_tokens, final.usage.input_tokens > 0) == (12, True)


def test_the_events_of_a_stream_come_in_anthropics_order(client: anthropic.Anthropic) -> None:
    events = [
        event.type
        for event in client.messages.create(model="small", max_tokens=2, messages=HELLO, stream=True)
        if event.type != "ping"
    ]
    assert events == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
@pytest.mark.parametrize("streams", [False, True])
def test_tools_are_called(client: anthropic.Anthropic, choice: dict[str, str], streams: bool) -> None:
    asked = {
        "model": "small",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "the weather in Oslo?"}],
        "tools": TOOLS,
        "tool_choice": choice,
    }
    if streams:
        with client.messages.stream(**asked) as stream:  # type: ignore[arg-type]
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**asked)  # type: ignore[call-overload]
    assert answer.stop_reason == "tool_use"
    (call,) = answer.content
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"place": "example"})
    follow_up = client.messages.create(
        model="small",
        max_tokens=16,
        tools=TOOLS,  # type: ignore[arg-type]
        messages=[
            *asked["messages"],  # type: ignore[misc]
            {"role": "assistant", "content": answer.content},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": call.id, "content": "rain"},
                    {"type": "text", "text": "so what?"},
                ],
            },
        ],
    )
    assert "so what?" in follow_up.content[0].text


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model="small", max_tokens=20, messages=HELLO, stop_sequences=["said:"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "said:")


def test_images_reach_the_engine(client: anthropic.Anthropic) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "what is it?"}]
    with_image = client.messages.create(
        model="small",
        max_tokens=9,
        messages=[{"role": "user", "content": blocks}],  # type: ignore[list-item]
    )
    assert with_image.usage.input_tokens > 200  # what the simulated engine takes an image for


def test_an_unknown_model_is_anthropics_not_found(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="nope", max_tokens=1, messages=HELLO)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert "demo/small" in caught.value.body["error"]["message"]
    assert caught.value.request_id


def test_what_the_engine_refuses_is_anthropics_bad_request(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model="small", max_tokens=1, messages=HELLO, extra_body={"temperature": -1})
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert "temperature" in caught.value.body["error"]["message"]


def test_what_cannot_be_translated_is_named(client: anthropic.Anthropic) -> None:
    block = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(
            model="small",
            max_tokens=1,
            messages=[{"role": "user", "content": [block]}],  # type: ignore[list-item]
        )
    assert "messages.0.content.0" in caught.value.body["error"]["message"]
    assert "'document'" in caught.value.body["error"]["message"]
