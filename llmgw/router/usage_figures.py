"""Reads how many tokens an engine says that a request took, in whatever words its API has for it.

Pure. Shapes as recorded of vLLM 0.32, SGLang 0.5.23 and llama.cpp b11434; OpenAI's and Anthropic's references.
"""

from __future__ import annotations

import re

import msgspec

TOKENS_MAX = 2**40
"""No request takes so many; what says so is not believed."""
OBJECT_BYTES_MAX = 8 * 1024
_TRIES_MAX = 16
_OPENING = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*\{")


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """What a request took. `prompt` includes `cached`; None where the engine does not say."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    estimated: bool = False

    def after(self, earlier: Tokens | None) -> Tokens:
        """This with what only `earlier` says: Anthropic's streams tell of the prompt first."""
        if earlier is None:
            return self
        return Tokens(
            self.prompt or earlier.prompt,
            self.cached if self.cached is not None else earlier.cached,
            self.completion if self.completion is not None else earlier.completion,
        )


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    # /v1/responses, and Anthropic's /v1/messages.
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Timings(msgspec.Struct):
    """llama.cpp's own figures, also where it says no usage."""

    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_n: int | None = None


class _Chunk(msgspec.Struct):
    """What matters of a chunk of chat or text completions."""

    choices: list[msgspec.Raw] | None = None
    usage: _Usage | None = None


_decode_usage = msgspec.json.Decoder(_Usage).decode
_decode_timings = msgspec.json.Decoder(_Timings).decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def find_tokens(text: bytes) -> Tokens | None:
    """The last usage object within a piece of JSON, which may begin and end anywhere; None where there is none.

    A quote within a JSON string is escaped, so that `"usage"` is never a part of what a model wrote.
    """
    # As engines write it; the general way below costs three times as much.
    at = text.rfind(b'"usage":{')
    if at >= 0:
        start = at + 8
        end = text.find(b"}", start) + 1
        if text.find(b"{", start + 1, end) >= 0 or end - start > OBJECT_BYTES_MAX:
            end = _closing(text, start)
        tokens = read_usage(text[start:end]) if end else None
        if tokens is not None:
            return tokens
    for start, end in _objects(text, b'"usage"'):
        tokens = read_usage(text[start:end])
        if tokens is not None:
            return tokens
    for start, end in _objects(text, b'"timings"'):
        tokens = _read_timings(text[start:end])
        if tokens is not None:
            return tokens
    return None


def read_event(data: bytes) -> tuple[Tokens | None, bool]:
    """The figures in the JSON of one event, and whether it is the extra chunk that `include_usage` brings: usage,
    and `"choices":[]`."""
    try:
        chunk = _decode_chunk(data)
    except (msgspec.DecodeError, RecursionError):
        return find_tokens(data), False
    if chunk.usage is None:
        # /v1/responses and Anthropic's streams have it further inside.
        return find_tokens(data), False
    tokens = _tokens(chunk.usage)
    return tokens, tokens is not None and chunk.choices == []


def read_usage(text: bytes) -> Tokens | None:
    """A usage object. None for what is none, or counts something else (seconds of sound)."""
    try:
        usage = _decode_usage(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    # As nearly all answers have it; the same as below.
    if usage.prompt_tokens_details is None and prompt is not None and completion is not None:
        if 0 <= prompt <= TOKENS_MAX and 0 <= completion <= TOKENS_MAX:
            return Tokens(prompt, None, completion)
        return None
    return _tokens(usage)


def _tokens(usage: _Usage) -> Tokens | None:
    prompt, completion, details = usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details
    if prompt is not None or completion is not None:
        cached = details.cached_tokens if details is not None else None
        return _believed(prompt, cached, completion)
    prompt, completion, details = usage.input_tokens, usage.output_tokens, usage.input_tokens_details
    if prompt is None and completion is None:
        # Some rerankers have nothing but a total.
        return None if usage.total_tokens is None else _believed(usage.total_tokens, None, None)
    cached = details.cached_tokens if details is not None else None
    read = usage.cache_read_input_tokens
    if read is not None or usage.cache_creation_input_tokens is not None:
        # Anthropic's input_tokens are those behind the cached ones, OpenAI's include them.
        prompt = (prompt or 0) + (read or 0) + (usage.cache_creation_input_tokens or 0)
        cached = read
    return _believed(prompt, cached, completion)


def _read_timings(text: bytes) -> Tokens | None:
    try:
        timings = _decode_timings(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if timings.prompt_n is None or timings.predicted_n is None:
        return None
    return _believed(timings.prompt_n + (timings.cache_n or 0), timings.cache_n, timings.predicted_n)


def _believed(prompt: int | None, cached: int | None, completion: int | None) -> Tokens | None:
    if not (0 <= (prompt or 0) <= TOKENS_MAX and 0 <= (cached or 0) <= TOKENS_MAX):
        return None
    if not 0 <= (completion or 0) <= TOKENS_MAX:
        return None
    return Tokens(prompt, cached, completion)


def _objects(text: bytes, name: bytes) -> list[tuple[int, int]]:
    """Where the objects of that name stand, the last first."""
    found: list[tuple[int, int]] = []
    before = len(text)
    for _ in range(_TRIES_MAX):
        before = text.rfind(name, 0, before)
        if before < 0:
            break
        opening = _OPENING.match(text, before + len(name))
        if opening is not None:
            end = _closing(text, opening.end() - 1)
            if end:
                found.append((opening.end() - 1, end))
    return found


def _closing(text: bytes, start: int) -> int:
    """Behind the brace that closes the one at `start`; 0 where it is not there. No string in it holds a brace."""
    limit = start + OBJECT_BYTES_MAX
    end = text.find(b"}", start, limit) + 1
    if text.find(b"{", start + 1, end) < 0:
        return end
    end = start
    while True:
        end = text.find(b"}", end, limit) + 1
        if not end or text.count(b"{", start, end) == text.count(b"}", start, end):
            return end
