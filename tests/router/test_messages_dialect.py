"""How one request of Anthropic's API is put to its endpoints, and what is held for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.messages.routes import AnthropicWay, RouteEndpoint
from llmgw.router.anthropic.answer import to_message
from llmgw.router.anthropic.dialect import ANSWER_BYTES_MAX, NATIVE_ASKED_AGAIN_S, MessagesDialect
from llmgw.router.anthropic.stream import StreamFilter
from llmgw.router.endpoint import Endpoint
from llmgw.router.errors import ApiError
from llmgw.router.filters import AnswerFilter, BadAnswer
from llmgw.router.request import read_request
from llmgw.router.request_reader import BodyBudget
from llmgw.router.response_head import CHUNKED, ResponseHead

BODY = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}'
CHAT = b"/v1/chat/completions"


def dialect(
    way: AnthropicWay = "auto", path: bytes = b"/v1/messages", bytes_max: int = 10_000
) -> tuple[MessagesDialect, BodyBudget]:
    request = read_request(b"POST", path, "1.1", [(b"host", b"g"), (b"accept-encoding", b"br")], keep_alive=True)
    request.body = BODY
    budget = BodyBudget(bytes_max)
    return MessagesDialect(request, way, budget), budget


def endpoint() -> Endpoint:
    return Endpoint(RouteEndpoint(id="e", host="10.0.0.1", port=1), idle_limit_s=4)


def head(status: int = 200, content_type: bytes = b"application/json") -> ResponseHead:
    head = ResponseHead(status, keep_alive=True)
    head.framing = CHUNKED
    head.headers = [(b"content-type", content_type)]
    head.is_event_stream = content_type == b"text/event-stream"
    return head


def test_an_engine_that_lacks_the_path_is_asked_as_it_is_again_after_a_while() -> None:
    asked, _ = dialect()
    engine = endpoint()
    assert asked.put_to(engine, 0.0)[0] == b"/v1/messages"
    assert asked.not_served(404, engine, 0.0)
    assert asked.put_to(engine, 0.0)[0] == CHAT
    assert not asked.not_served(404, engine, 0.0)
    assert dialect()[0].put_to(engine, NATIVE_ASKED_AGAIN_S - 1)[0] == CHAT
    assert dialect()[0].put_to(engine, NATIVE_ASKED_AGAIN_S + 1)[0] == b"/v1/messages"
    assert dialect()[0].put_to(endpoint(), 0.0)[0] == b"/v1/messages"


def test_to_lack_the_count_is_not_to_lack_the_messages() -> None:
    engine = endpoint()
    asked, _ = dialect(path=b"/v1/messages/count_tokens")
    asked.put_to(engine, 0.0)
    assert asked.not_served(404, engine, 0.0)
    assert asked.put_to(engine, 0.0)[0] == b"/tokenize"
    assert dialect()[0].put_to(engine, 0.0)[0] == b"/v1/messages"


@pytest.mark.parametrize("status", [200, 400, 401, 429, 500, 503])
def test_other_statuses_say_nothing_of_the_path(status: int) -> None:
    asked, _ = dialect()
    engine = endpoint()
    asked.put_to(engine, 0.0)
    assert not asked.not_served(status, engine, 0.0)
    assert not engine.unserved


def test_the_translation_is_made_once_and_counted_until_it_is_let_go() -> None:
    asked, budget = dialect("translate")
    _, body = asked.put_to(endpoint(), 0.0)
    assert asked.put_to(endpoint(), 0.0)[1] is body
    assert budget.held == len(body)
    asked.release()
    asked.release()
    assert budget.held == 0


def test_there_may_be_no_room_for_a_translation() -> None:
    asked, budget = dialect("translate", bytes_max=60)
    with pytest.raises(ApiError, match="as many request bodies"):
        asked.put_to(endpoint(), 0.0)
    assert budget.held == 0


def test_an_answer_has_a_limit() -> None:
    asked, _ = dialect("translate")
    asked.put_to(endpoint(), 0.0)
    filter = asked.filter(head())
    assert filter is not None
    assert filter.feed(b" " * ANSWER_BYTES_MAX) == b""
    with pytest.raises(BadAnswer, match="more than"):
        filter.feed(b" ")


def test_of_a_large_error_the_beginning_is_told() -> None:
    asked, _ = dialect()
    asked.put_to(endpoint(), 0.0)
    filter = asked.filter(head(500, b"text/plain"))
    assert filter is not None
    for _ in range(100):
        assert filter.feed(b"boom " * 1000) == b""
    told = json.loads(filter.end())["error"]
    assert told["type"] == "api_error"
    assert told["message"].startswith("boom boom")
    assert len(told["message"]) <= 500


def test_an_answer_that_goes_on_as_it_is_gets_the_request_id_only() -> None:
    asked, _ = dialect()
    asked.put_to(endpoint(), 0.0)
    answer = head()
    answer.headers.append((b"request-id", b"the engine's"))
    assert asked.filter(answer) is None
    assert answer.get(b"request-id").startswith(b"req-")
    assert len([name for name, _ in answer.headers if name == b"request-id"]) == 1


KEYS = [
    *("id", "choices", "index", "message", "delta", "content", "reasoning", "refusal", "tool_calls", "function"),
    *("name", "arguments", "finish_reason", "stop_reason", "matched_stop", "usage", "prompt_tokens", "error"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=6,
        )
    ),
    max_leaves=15,
)


def fed(filter: AnswerFilter, *payload: bytes) -> bytes:
    return b"".join([*map(filter.feed, payload), filter.end()])


@given(told=st.lists(JSON, max_size=5))
def test_whatever_an_engine_says_becomes_an_answer_or_is_refused(told: list[Any]) -> None:
    for each in told:
        try:
            json.loads(to_message(json.dumps(each).encode(), "m", ["x"]))
        except BadAnswer as error:
            assert str(error)  # noqa: PT017
    events = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in told) + b"data: [DONE]\n\n"
    try:
        out = fed(StreamFilter("m", ["x"], b"r"), events)
    except BadAnswer:
        return
    assert out.endswith(b"\n\n")


@given(
    payload=st.lists(
        st.binary(max_size=40) | st.sampled_from([b"data: ", b"\n", b"\r\n", b"{", b":"]), max_size=30
    )
)
def test_bytes_of_any_kind_end_in_an_answer_or_a_refusal(payload: list[bytes]) -> None:
    with pytest.raises(BadAnswer):
        fed(StreamFilter("m", [], b"r"), *payload)
