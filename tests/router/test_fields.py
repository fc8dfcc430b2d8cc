"""The model is found in any body, and its name can be replaced without touching another byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.router.errors import ApiError
from llmgw.router.fields import read_fields, replace_model

MULTIPART = b'multipart/form-data; boundary="--x y"'
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("model"), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(st.text().filter(lambda key: key != "stream"), values, max_size=4),
    st.text(min_size=1),
    st.booleans(),
    st.integers(0, 3),
)
def test_only_the_models_name_is_replaced(
    rest: dict[str, object], new: str, ascii_only: bool, indent: int
) -> None:
    body = {**rest, "model": "old", **{key + "'": value for key, value in rest.items()}}
    text = json.dumps(body, ensure_ascii=ascii_only, indent=indent or None).encode("utf-8", "replace")
    name = new.encode("utf-8", "replace").decode()
    expected = json.loads(text)
    assert read_fields(text, b"").model == "old"
    expected["model"] = name
    assert json.loads(replace_model(text, b"", name)) == expected


def test_every_spelling_of_the_key_is_replaced_since_engines_differ_on_which_counts() -> None:
    body = b'{"model" : "a", "x":{"model":"a"}, "mod\\u0065l":"b", "y":["model","a"]}'
    assert replace_model(body, b"", "c") == (
        b'{"model" : "c", "x":{"model":"a"}, "mod\\u0065l":"c", "y":["model","a"]}'
    )


def multipart(*fields: tuple[bytes, bytes]) -> bytes:
    parts = [b"----x y\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % field for field in fields]
    return b"".join(parts) + b"----x y--\r\n"


def test_the_model_is_found_and_replaced_among_multipart_fields() -> None:
    audio = b'RIFF\r\n\r\nname="model"\0\xff'
    body = multipart(
        (b'name="file"; filename="model"', audio), (b'name="model"', b"whisper"), (b"name=stream", b"true")
    )
    fields = read_fields(body, MULTIPART)
    assert (fields.model, fields.stream) == ("whisper", True)
    assert replace_model(body, MULTIPART, "w2") == body.replace(b"\r\nwhisper\r\n", b"\r\nw2\r\n")


@pytest.mark.parametrize(
    ("body", "content_type", "code", "said"),
    [
        (b"", b"", "invalid_json", "empty"),
        (b"{", b"", "invalid_json", "truncated"),
        (b'{"model":"m"} x', b"", "invalid_json", "trailing"),
        (b"[1]", b"", "invalid_json", "object"),
        (b"{}", b"", "missing_model", 'no "model"'),
        (b'{"model":null}', b"", "invalid_value", "string"),
        (b'{"model":7}', b"", "invalid_value", "string"),
        (b'{"model":""}', b"", "invalid_model", "1 to"),
        (b'{"model":"' + b"m" * 2000 + b'"}', b"", "invalid_model", "1 to"),
        (b'{"model":"m","stream":"yes"}', b"", "invalid_value", "true or false"),
        (b'{"model":"m","x":' + b"[" * 5000 + b"]" * 5000 + b"}", b"", "invalid_json", "nested"),
        (multipart((b'name="file"', b"x")), MULTIPART, "missing_model", "no field"),
        (b"", b"multipart/form-data", "invalid_multipart", "boundary"),
        (b"----x y", MULTIPART, "missing_model", "no field"),
    ],
)
def test_a_body_without_a_model_gets_a_sentence(body: bytes, content_type: bytes, code: str, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_fields(body, content_type)
    assert caught.value.status == 400
    assert caught.value.code == code
    assert said in caught.value.message


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", MULTIPART]))
def test_any_bytes_are_read_or_refused(body: bytes, content_type: bytes) -> None:
    try:
        model = read_fields(body, content_type).model
    except ApiError:
        return
    assert model
