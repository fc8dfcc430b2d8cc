"""A body that asks for usage is the client's own but for that, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.router.fields import read_fields
from llmgw.router.stream_options import asking_for_usage, may_be_asked, with_member


def asked(body: bytes) -> bytes | None:
    options = read_fields(body, b"").stream_options
    return asking_for_usage(body, options) if may_be_asked(options) else None


def test_a_body_without_stream_options_gets_them_and_is_else_untouched() -> None:
    body = b' {\n "model":"m", "x":[1.50,"\\u00e4"],"stream" : true }\n'
    assert asked(body) == b' {"stream_options":{"include_usage":true},' + body[2:]


@pytest.mark.parametrize(
    ("given_options", "sent"),
    [
        (b"null", b'{"include_usage":true}'),
        (b"{}", b'{"include_usage":true}'),
        (b'{ "include_usage" : false }', b'{ "include_usage" : true }'),
        (b'{"include_usage":null,"a":1.0}', b'{"include_usage":true,"a":1.0}'),
        (b'{"a":{"include_usage":false}}', b'{"include_usage":true,"a":{"include_usage":false}}'),
        (
            b'{"continuous_usage_stats":true}',
            b'{"include_usage":true,"continuous_usage_stats":false}',
        ),
        (b'{"include\\u005fusage":false}', b'{"include\\u005fusage":true}'),
    ],
)
def test_stream_options_that_leave_usage_out_are_changed_in_their_place(
    given_options: bytes, sent: bytes
) -> None:
    for before, behind in ((b'{"model":"m",', b"}"), (b"{", b' , "model": "m","s":"}"}')):
        body = before + b'"stream_options" : ' + given_options + behind
        assert asked(body) == before + b'"stream_options" : ' + sent + behind


@pytest.mark.parametrize(
    "options", [b'{"include_usage":true}', b'"yes"', b"[1]", b'{"include_usage":"yes"}', b"7"]
)
def test_a_client_that_asks_itself_or_sends_nonsense_is_left_alone(options: bytes) -> None:
    assert asked(b'{"model":"m","stream_options":' + options + b"}") is None


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["stream_options", "{", '"']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=6) | st.just("stream_options"), values, max_size=5), st.integers(0, 3))
def test_setting_a_member_changes_that_member_only(members: dict[str, Any], indent: int) -> None:
    text = json.dumps(members, indent=indent or None, ensure_ascii=bool(indent % 2)).encode()
    changed = json.loads(with_member(text, "stream_options", b'{"a":1}'))
    assert changed == {**members, "stream_options": {"a": 1}}
    assert [key for key in changed if key in members] == list(members)
