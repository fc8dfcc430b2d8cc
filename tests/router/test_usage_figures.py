"""What engines say of tokens is read in all their words, as they were recorded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmgw.router.usage_figures import TOKENS_MAX, Tokens, find_tokens, read_event

RECORDED = Path(os.environ.get("LLMGW_SHARED", Path(__file__).parents[3] / "shared")) / "engines" / "http"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (b'"usage":{"prompt_tokens":12,"total_tokens":20,"completion_tokens":8}', Tokens(12, None, 8)),
        (
            b'"usage" : { "prompt_tokens": 12, "completion_tokens": 8, '
            b'"prompt_tokens_details": {"cached_tokens": 5} }',
            Tokens(12, 5, 8),
        ),
        (
            b'"usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":11},"output_tokens":2}',
            Tokens(12, 11, 2),
        ),
        (b'"usage":{"cache_read_input_tokens":20,"input_tokens":5,"output_tokens":4}', Tokens(25, 20, 4)),
        (
            b'"usage":{"cache_creation_input_tokens":3,"cache_read_input_tokens":0,"input_tokens":5,'
            b'"output_tokens":4}',
            Tokens(8, 0, 4),
        ),
        (b'"usage":{"prompt_tokens":7,"total_tokens":7}', Tokens(7, None, None)),
        (b'"usage":{"total_tokens":7}', Tokens(7, None, None)),
        (b'"usage":null,"timings":{"cache_n":20,"prompt_n":5,"predicted_n":4}', Tokens(25, 20, 4)),
        (b'"usage":{"type":"duration","seconds":3}', None),
        (b'"usage":{"prompt_tokens":"7"}', None),
        (b'"usage":{"prompt_tokens":-7}', None),
        (b'"usage":{"prompt_tokens":%d}' % (TOKENS_MAX + 1), None),
        (b'"usage":null', None),
        (b'"usage"', None),
        (b'{"content":"the \\"usage\\":{\\"prompt_tokens\\":1}"}', None),
        (b"", None),
    ],
)
def test_usage_is_read_in_the_words_of_each_api(text: bytes, tokens: Tokens | None) -> None:
    for body in (text, b'{"a":1,' + text + b"}", b'5,"b":[],' + text + b',"after":{"x":{}}}'):
        assert find_tokens(body) == tokens


def test_what_else_is_called_usage_does_not_hide_it() -> None:
    text = (
        b'{"usage":{"input_tokens":12,"output_tokens":2},"tools":[{"usage":{"type":"object","properties":{}}}]}'
    )
    assert find_tokens(text) == Tokens(12, None, 2)
    assert find_tokens(text + b'"usage":{}' * 100) is None, "the search is bounded"


def test_the_extra_chunk_has_usage_and_no_choices() -> None:
    assert read_event(b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}') == (
        Tokens(1, None, 2),
        True,
    )
    assert read_event(b'{"choices":[{}],"usage":{"prompt_tokens":1,"completion_tokens":2}}')[1] is False
    assert read_event(b'{"choices":[],"usage":null}') == (None, False)
    assert read_event(b'{"choices":[],"usage":{}}') == (None, False)
    assert read_event(b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}')[1] is False
    assert read_event(b"[DONE]") == (None, False)


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recordings are not here")
@pytest.mark.parametrize(
    ("file", "tokens"),
    [
        ("vllm/chat.txt", Tokens(12, None, 8)),
        ("sglang/chat.txt", Tokens(12, None, 8)),
        ("llamacpp/chat.txt", Tokens(25, 0, 8)),
        ("vllm/completions.txt", Tokens(2, None, 8)),
        ("llamacpp/completions.txt", Tokens(2, 1, 8)),
        ("vllm/responses.txt", Tokens(12, 0, 4)),
        ("sglang/responses.txt", Tokens(12, 11, 2)),
        ("llamacpp/responses.txt", Tokens(25, 20, 4)),
        ("vllm/messages-anthropic.txt", Tokens(12, None, 4)),
        ("llamacpp/messages-anthropic.txt", Tokens(25, 20, 4)),
        ("vllm/chat-stream-usage.txt", Tokens(12, None, 8)),
        ("sglang/chat-stream-usage.txt", Tokens(12, None, 8)),
        ("llamacpp/chat-stream-usage.txt", Tokens(25, 20, 8)),
        ("sglang/completions-stream.txt", Tokens(2, None, 4)),
        ("llamacpp/completions-stream.txt", Tokens(2, 1, 4)),
    ],
)
def test_recorded_answers_are_read(file: str, tokens: Tokens) -> None:
    body = (RECORDED / file).read_bytes().replace(b"\r\n", b"\n").split(b"\n\n", 1)[1]
    assert find_tokens(body) == tokens


def test_what_is_nested_too_deeply_is_no_figure_and_breaks_no_stream() -> None:
    deep = b"[" * 100_000
    nested = b"[" * 3000 + b"]" * 3000
    usage = b'"usage":{"prompt_tokens":1,"completion_tokens":2}'
    assert read_event(b'{"x":' + deep) == (None, False)
    assert read_event(b'{"choices":[' + nested + b'],"usage":{"x":' + nested + b"}}") == (None, False)
    assert read_event(b'{"x":' + nested + b"," + usage + b"}") == (Tokens(1, None, 2), False)
    assert find_tokens(b'{"timings":{"prompt_n":1,"x":' + nested + b"}}") is None
