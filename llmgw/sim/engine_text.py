"""What the simulated engine says: words that follow from the question, so that a test can foretell them.

One token is one word with the space before it. Pure: no clock, no randomness.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

ECHOED_WORDS = 8
# An image or a sound in a chat message, roughly what vision models spend on one.
MEDIA_TOKENS = 256
EMBEDDING_DIMENSIONS = 64


@dataclass(frozen=True)
class Answer:
    """One choice, known in full before its first token is sent.

    `tokens` are pieces of text, or pieces of a tool call's arguments when `tool` names a function.
    """

    tokens: list[str]
    finish_reason: str
    stop_reason: str | None = None
    tool: str | None = None

    def text(self, end: int | None = None) -> str:
        """The first `end` tokens joined; all of them by default."""
        return "".join(self.tokens[:end])


def count_tokens(text: str) -> int:
    """Tokens of a prompt: its words."""
    return len(text.split())


def message_text(message: dict[str, Any]) -> tuple[str, int]:
    """The words of a chat message, and how many tokens its images and sounds are worth."""
    content = message.get("content")
    if isinstance(content, str):
        return content, 0
    texts: list[str] = []
    media = 0
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            media += MEDIA_TOKENS
    return " ".join(texts), media


def say(
    model: str, speaker: str, prompt: str, choice: int, limit: int, natural: int, stop: Sequence[str]
) -> Answer:
    """The answer to a prompt: who speaks, the prompt's first words, then words by counter.

    It ends after `natural` tokens with `stop`, after `limit` with `length`, or before the first of the `stop`
    strings, which is not a part of it.
    """
    length = min(limit, natural)
    reason = "stop" if natural <= limit else "length"
    tokens: list[str] = []
    text = ""
    for token in islice(_words(model, speaker, prompt, choice), length):
        tokens.append(token)
        if not stop:
            continue
        seen = len(text) - max(map(len, stop))
        text += token
        found = [(at, s) for s in stop if (at := text.find(s, max(0, seen))) >= 0]
        if found:
            at, matched = min(found)
            return Answer(_cut(tokens, at), "stop", matched)
    return Answer(tokens, reason)


def call_tool(name: str, parameters: Any, limit: int) -> Answer:
    """A call of a function with arguments that fit its JSON schema, in pieces of a few characters."""
    text = json.dumps(_example(parameters, 0))
    pieces = [text[at : at + 8] for at in range(0, len(text), 8)]
    return Answer(pieces[:limit], "tool_calls" if len(pieces) <= limit else "length", tool=name)


def embed(text: str, dimensions: int) -> list[float]:
    """A vector of length 1 that depends on the text alone."""
    raw = hashlib.shake_128(text.encode()).digest(4 * dimensions)
    values = [word / 2**31 - 1 for word in struct.unpack(f"<{dimensions}I", raw)]
    norm = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / norm for value in values]


def _words(model: str, speaker: str, prompt: str, choice: int) -> Iterator[str]:
    opening = ["This", "is", model, "on", f"{speaker}."]
    if choice:
        opening += ["Choice", f"{choice}."]
    echoed = prompt.split(None, ECHOED_WORDS)[:ECHOED_WORDS]
    words = [*opening, *(["You", "said:", *echoed] if echoed else [])]
    yield words[0]
    for word in words[1:]:
        yield f" {word}"
    number = 1
    while True:
        yield f" word{number}"
        number += 1


def _cut(tokens: list[str], length: int) -> list[str]:
    """The tokens up to `length` characters, the last one shortened."""
    kept: list[str] = []
    for token in tokens:
        if length <= 0:
            break
        kept.append(token[:length])
        length -= len(token)
    return kept


def _example(schema: Any, depth: int) -> Any:
    """A value that fits a JSON schema closely enough for a client to parse it."""
    if not isinstance(schema, dict) or depth > 8:
        return {}
    if "const" in schema:
        return schema["const"]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return _example(schema[key][0], depth + 1)
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0] if kind else "object"
    if kind == "object":
        properties = schema.get("properties")
        fields = properties if isinstance(properties, dict) else {}
        return {name: _example(value, depth + 1) for name, value in fields.items()}
    if kind == "array":
        return [_example(schema["items"], depth + 1)] if schema.get("minItems") and "items" in schema else []
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"boolean": True, "null": None}.get(str(kind), "example")
