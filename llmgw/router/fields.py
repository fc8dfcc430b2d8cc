"""What the gateway reads of a request body, and the one value that it may replace: the model's name.

Pure. JSON is scanned by msgspec without building what is not needed; multipart bodies (audio) by their borders.
"""

from __future__ import annotations

import json
import re

import msgspec

from llmgw.router.errors import ApiError

_BOUNDARY = re.compile(rb'boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_PART_NAME = re.compile(rb'content-disposition:[^\r\n]*?[;\s]name=(?:"([^"\r\n]*)"|([^\s;"]+))', re.IGNORECASE)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)
_AT = re.compile(r" - at `\$\.?(.*)`$")
PART_HEAD_BYTES_MAX = 16 * 1024
MODEL_NAME_CHARS_MAX = 1024


_ABSENT = msgspec.Raw()


class Fields(msgspec.Struct, gc=False):
    """What is read of a body. What is raw is JSON as it came, b"" where it is absent; it is not copied."""

    model: str
    stream: bool | None = False
    user: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    input: msgspec.Raw = _ABSENT
    stream_options: msgspec.Raw = _ABSENT


_decode = msgspec.json.Decoder(Fields).decode


def read_fields(body: bytes, content_type: bytes) -> Fields:
    """The model's name, whether a stream is asked for, and how it begins. Raises ApiError with a sentence."""
    if content_type[:10].lower() == b"multipart/":
        return _read_multipart(body, content_type)
    try:
        fields = _decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except msgspec.DecodeError as error:
        what = str(error) if body else "it is empty"
        raise ApiError(
            400,
            f'The request body is not JSON: {what}. Send a JSON object with a "model".',
            code="invalid_json",
        ) from None
    except RecursionError:
        raise ApiError(
            400, "The request body is nested too deeply to be read; flatten it.", code="invalid_json"
        ) from None
    if not 0 < len(fields.model) <= MODEL_NAME_CHARS_MAX:
        _checked(fields.model)
    return fields


def replace_model(body: bytes, content_type: bytes, name: str) -> bytes:
    """The same body with another model name and not one other byte changed. `read_fields` accepted it before."""
    if content_type[:10].lower() == b"multipart/":
        span = _multipart_span(body, content_type)
        spans = [span] if span else []
        value = name.encode()
    else:
        spans = _model_spans(body)
        value = json.dumps(name).encode()
    for start, end in reversed(spans):
        body = body[:start] + value + body[end:]
    return body


def _checked(model: str) -> str:
    if not model or len(model) > MODEL_NAME_CHARS_MAX:
        raise ApiError(
            400,
            f'"model" must be a name of 1 to {MODEL_NAME_CHARS_MAX} characters; GET /v1/models lists them.',
            code="invalid_model",
            param="model",
        )
    return model


def _invalid_field(detail: str) -> ApiError:
    if "missing required field" in detail:
        return ApiError(
            400,
            'The request body has no "model"; name one (GET /v1/models lists them).',
            code="missing_model",
            param="model",
        )
    at = _AT.search(detail)
    if at is None or not at[1]:
        return ApiError(400, f"The request body must be a JSON object ({detail}).", code="invalid_json")
    expected = {"model": "a string", "stream": "true or false"}.get(at[1], "something else")
    return ApiError(
        400,
        f'"{at[1]}" must be {expected} ({_AT.sub("", detail)}).',
        code="invalid_value",
        param=at[1],
    )


def _model_spans(body: bytes) -> list[tuple[int, int]]:
    """Where the values of the top level's `model` keys stand, quotes included, in order."""
    spans: list[tuple[int, int]] = []
    depth = 0
    is_key = False
    is_model = False
    for token in _TOKEN.finditer(body):
        first = body[token.start()]
        if first == 0x22:  # a string
            if depth != 1:
                continue
            if is_key:
                text = token[0]
                is_model = text == b'"model"' or (b"\\" in text and json.loads(text) == "model")
            elif is_model:
                spans.append(token.span())
        elif first in b"{[":
            depth += 1
            is_key = depth == 1
        elif first in b"}]":
            depth -= 1
        elif depth == 1:
            is_key = first == 0x2C  # after a comma comes a key, after a colon its value
    return spans


def _read_multipart(body: bytes, content_type: bytes) -> Fields:
    if _BOUNDARY.search(content_type) is None:
        raise ApiError(
            400,
            "The content-type names no multipart boundary; send multipart/form-data with one.",
            code="invalid_multipart",
        )
    span = _multipart_span(body, content_type)
    if span is None:
        raise ApiError(
            400,
            'The multipart body has no field "model"; name one (GET /v1/models lists them).',
            code="missing_model",
            param="model",
        )
    try:
        model = body[span[0] : span[1]].decode()
    except UnicodeDecodeError:
        model = ""
    stream = _multipart_span(body, content_type, b"stream")
    streams = stream is not None and body[slice(*stream)].strip().lower() in (b"true", b"1")
    return Fields(model=_checked(model), stream=streams)


def _multipart_span(body: bytes, content_type: bytes, field: bytes = b"model") -> tuple[int, int] | None:
    """Where the value of the last field of that name stands (RFC 2046 section 5.1)."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        return None
    border = b"--" + (match[1] or match[2])
    found: tuple[int, int] | None = None
    at = 0 if body.startswith(border) else body.find(b"\r\n" + border) + 2
    while at >= 2 or body.startswith(border, at):
        start = at + len(border)
        if body.startswith(b"--", start):
            break
        end = body.find(b"\r\n" + border, start)
        if end < 0:
            break
        head_end = body.find(b"\r\n\r\n", start, min(end, start + PART_HEAD_BYTES_MAX))
        if head_end >= 0:
            name = _PART_NAME.search(body, start, head_end)
            if name is not None and (name[1] if name[1] is not None else name[2]) == field:
                found = (head_end + 4, end)
        at = end + 2
    return found
