"""Anthropic's requests, put as chat completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.router.anthropic.request import read_messages, to_chat, to_tokenize
from llmgw.router.errors import ApiError

PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The chat completion that is asked for in place of these messages."""
    body = {"model": "m", "max_tokens": 5, "messages": list(messages) or [user("hi")], **more}
    translated: dict[str, Any] = json.loads(to_chat(read_messages(json.dumps(body).encode())))
    return translated


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def refusal(body: Any) -> str:
    """The sentence with which a body is refused."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as caught:
        to_chat(read_messages(raw))
    assert caught.value.status == 400
    return caught.value.message


def test_a_plain_question_asks_for_the_same() -> None:
    assert chat() == {"model": "m", "messages": [user("hi")], "max_tokens": 5}


def test_a_stream_is_asked_for_with_its_usage() -> None:
    asked = chat(stream=True)
    assert (asked["stream"], asked["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize("system", ["be\nbrief", [text("be"), {**text("brief"), "cache_control": {}}]])
def test_the_system_prompt_is_the_first_message(system: Any) -> None:
    assert chat(system=system)["messages"][0] == {"role": "system", "content": "be\nbrief"}


def test_a_system_turn_stays_where_it_is() -> None:
    turns = chat(user("hi"), {"role": "system", "content": [text("now briefly")]}, user("go"))["messages"]
    assert [turn["role"] for turn in turns] == ["user", "system", "user"]


def test_text_alone_is_one_string_and_images_keep_their_place() -> None:
    assert chat(user([text("a"), text("b")]))["messages"] == [user("a\nb")]
    (turn,) = chat(
        user(
            [
                text("a"),
                {"type": "image", "source": PNG},
                {"type": "image", "source": {"type": "url", "url": "u"}},
            ]
        )
    )["messages"]
    assert turn["content"] == [
        text("a"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}},
        {"type": "image_url", "image_url": {"url": "u"}},
    ]


def test_a_document_of_text_is_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "words"}
    assert chat(user([{"type": "document", "source": source, "title": "T"}]))["messages"] == [user("T\n\nwords")]


def test_calls_of_tools_and_their_results_become_turns_of_their_own() -> None:
    turns = chat(
        user("the weather?"),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                text("I look."),
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"at": ["Oslo", 1.50]}},
                {"type": "tool_use", "id": "t2", "name": "time", "input": {}},
            ],
        },
        user(
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [text("rain"), {"type": "image", "source": PNG}],
                },
                {"type": "tool_result", "tool_use_id": "t2", "content": "no clock", "is_error": True},
                {"type": "tool_result", "tool_use_id": "t3"},
                text("well?"),
            ]
        ),
    )["messages"]
    assert turns[1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": "t1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"at": ["Oslo", 1.5]}'},
            },
            {"id": "t2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
        ],
    }
    assert turns[2:5] == [
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no clock"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
    ]
    assert [part["type"] for part in turns[5]["content"]] == ["image_url", "text"]


def test_a_turn_of_calls_only_has_no_content() -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    turns = chat(user("x"), {"role": "assistant", "content": [call]}, user("y"))["messages"]
    assert turns[1]["content"] is None


def test_an_answer_that_the_client_began_is_gone_on_with() -> None:
    asked = chat(user("the name?"), {"role": "assistant", "content": "It is ("})
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    assert "continue_final_message" not in chat()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
    ],
)
def test_tools_and_their_choice(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [{"name": "f", "description": "d", "input_schema": schema, "strict": True, "type": "custom"}]
    asked = chat(tools=tools, tool_choice=choice)
    function = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    assert asked["tools"] == [{"type": "function", "function": function}]
    assert {key: asked[key] for key in expected} == expected


def test_sampling_stops_user_effort_and_form() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    asked = chat(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_sequences=["a", "b"],
        metadata={"user_id": "u"},
        output_config={"effort": "max", "format": form},
        thinking={"type": "enabled", "budget_tokens": 2000},
        service_tier="auto",
        betas=["x"],
    )
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.5, 0.9, 7)
    assert (asked["stop"], asked["user"], asked["reasoning_effort"]) == (["a", "b"], "u", "high")
    assert asked["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert not {"thinking", "service_tier", "betas"} & asked.keys()


def test_counting_asks_for_the_messages_as_the_template_makes_them() -> None:
    tools = [{"name": "f", "input_schema": {}}]
    body = {"model": "m", "system": "s", "messages": [user("hi")], "tools": tools}
    assert json.loads(to_tokenize(read_messages(json.dumps(body).encode()))) == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, user("hi")],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    }


OK = {"model": "m", "max_tokens": 1}
NOT_UTF8 = (
    b'{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a",'
    b'"name":"b","input":{"x":"\xff"}}]}]}'
)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({**OK, "messages": []}, "messages: at least one"),
        (OK, "messages"),
        ({**OK, "messages": "hi"}, "messages: "),
        ({"model": "m", "messages": [user("x")]}, "max_tokens"),
        ({**OK, "max_tokens": 0, "messages": [user("x")]}, "max_tokens"),
        ({**OK, "max_tokens": "7", "messages": [user("x")]}, "max_tokens: "),
        ({**OK, "messages": [{"role": "robot", "content": "x"}]}, "messages.0.role: 'robot'"),
        ({**OK, "messages": [user([{"type": "text", "text": 7}])]}, "messages[0].content[0].text"),
        ({**OK, "messages": [user([{"type": "text"}])]}, "messages.0.content.0.text: it is missing"),
        ({**OK, "messages": [user([{"type": "video"}])]}, "messages.0.content.0: a block of the type 'video'"),
        ({**OK, "messages": [user([{"type": "image"}])]}, "messages.0.content.0"),
        ({**OK, "messages": [user([{"type": "image", "source": {"type": "file"}}])]}, "none of base64, url"),
        ({**OK, "messages": [user([{"type": "image", "source": {"type": "url"}}])]}, "source.url: it is missing"),
        ({**OK, "messages": [user([{"type": "tool_result"}])]}, "tool_use_id: it is missing"),
        ({**OK, "messages": [{"role": "assistant", "content": [{"type": "image", "source": PNG}]}]}, "'image'"),
        (
            {**OK, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": 1}]}]},
            "input: an object",
        ),
        ({**OK, "system": [{"type": "image", "source": PNG}], "messages": [user("x")]}, "system.0"),
        (
            {**OK, "messages": [user("x")], "tools": [{"name": "web", "type": "web_search_20250305"}]},
            "tools.0.type",
        ),
        ({**OK, "messages": [user("x")], "tools": [{"name": "f"}]}, "tools.0.input_schema"),
        (
            {
                **OK,
                "messages": [user("x")],
                "tools": [{"name": "f", "input_schema": {}}],
                "tool_choice": {"type": "x"},
            },
            "tool_choice.type",
        ),
        ({**OK, "messages": [user("x")], "output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        (
            b'{"model":"m","max_tokens":1,"messages":[' + b'{"role":"user","content":[' * 1000,
            "The body cannot be",
        ),
        (NOT_UTF8, "input: it is not UTF-8"),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":'
            + b'[{"type":"tool_result","tool_use_id":"t","content":' * 1000
            + b'"x"'
            + b"}]" * 1000
            + b"}]}",
            "The body cannot be read",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_place(body: Any, says: str) -> None:
    assert says in refusal(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "text",
                    "role",
                    "content",
                    "source",
                    "input",
                    "id",
                    "name",
                    "tool_use_id",
                    "system",
                    "data",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(messages=JSON, system=JSON, tools=JSON, choice=JSON)
def test_whatever_is_sent_is_translated_or_refused(messages: Any, system: Any, tools: Any, choice: Any) -> None:
    body = {**OK, "messages": messages, "system": system, "tools": tools, "tool_choice": choice}
    try:
        json.loads(to_chat(read_messages(json.dumps(body).encode())))
    except ApiError:
        assert refusal(body)
