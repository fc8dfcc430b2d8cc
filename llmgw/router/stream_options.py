"""Asks an engine for a stream's usage: `stream_options.include_usage` is set in a body that else stays as it is.

Pure. vLLM, SGLang and llama.cpp then send one more chunk before `[DONE]`, with no choices and the usage.
"""

from __future__ import annotations

import json
import re

import msgspec

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)
_SPACE = b" \t\r\n"
_ASKING = b'"stream_options":{"include_usage":true},'


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


_decode = msgspec.json.Decoder(_StreamOptions | None).decode


def may_be_asked(options: msgspec.Raw) -> bool:
    """Whether a client left usage out. `options` is its `stream_options` as it came, b"" where it is absent.

    False where it asked for usage itself, and where its `stream_options` are no such thing: the engine says so.
    """
    if not bytes(options):
        return True
    try:
        read = _decode(options)
    except (msgspec.DecodeError, RecursionError):
        return False
    return read is None or not read.include_usage


def asking_for_usage(body: bytes, options: msgspec.Raw) -> bytes:
    """A JSON body that asks for usage, of a client for which `may_be_asked`; no byte outside of it is changed."""
    own = bytes(options)
    if not own:
        at = body.index(b"{") + 1
        return b"%b%b%b" % (body[:at], _ASKING, body[at:])
    if own == b"null":
        own = b"{}"
    own = with_member(own, "include_usage", b"true")
    if b"continuous_usage_stats" in own:
        # It means nothing without usage, which the client left out: with it every chunk would carry figures.
        own = with_member(own, "continuous_usage_stats", b"false")
    return with_member(body, "stream_options", own)


def with_member(text: bytes, name: str, value: bytes) -> bytes:
    """The text of a JSON object with that member set; `text` is valid. Every byte outside the value is kept.

    A name that stands there several times gets the value each time: which one counts is the reader's choice.
    """
    spans = _value_spans(text, name)
    if not spans:
        at = text.index(b"{") + 1
        comma = b"" if text[at:].lstrip(_SPACE).startswith(b"}") else b","
        return b"%b%b:%b%b%b" % (text[:at], json.dumps(name).encode(), value, comma, text[at:])
    for start, end in reversed(spans):
        text = text[:start] + value + text[end:]
    return text


def _value_spans(text: bytes, name: str) -> list[tuple[int, int]]:
    """Where the values of the top level's members of that name stand, in order."""
    plain = json.dumps(name).encode()
    spans: list[tuple[int, int]] = []
    depth = 0
    is_key = wanted = False
    start: int | None = None
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        if first == 0x22:  # a string
            if depth == 1 and is_key:
                key = token[0]
                wanted = key == plain or (b"\\" in key and json.loads(key) == name)
        elif first in b"{[":
            depth += 1
            is_key = depth == 1
        elif depth == 1 and first == 0x3A:  # after a colon comes a value
            is_key = False
            start = token.end() if wanted else None
        elif depth == 1:  # a comma or the end of the object ends it
            if start is not None:
                spans.append(_trimmed(text, start, token.start()))
                start = None
            is_key = first == 0x2C
            depth -= not is_key
        elif first in b"}]":
            depth -= 1
    return spans


def _trimmed(text: bytes, start: int, end: int) -> tuple[int, int]:
    value = text[start:end]
    return start + len(value) - len(value.lstrip(_SPACE)), end - (len(value) - len(value.rstrip(_SPACE)))
