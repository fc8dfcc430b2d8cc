"""What the simulated engine answers without generating: tokens of a text or of messages, and how texts match.

The shapes are vLLM's (`/tokenize`, `/detokenize`, `/rerank`, `/score`). A token is a word.
"""

from __future__ import annotations

import secrets
from typing import Any

from llmgw.sim.engine_requests import ApiError, Fields, chat_tokens
from llmgw.sim.engine_text import count_tokens, embed

_VOCABULARY = 151_936
_DIMENSIONS = 16


def tokenize(fields: Fields, max_model_len: int) -> dict[str, Any]:
    """The answer to `/tokenize` for a `prompt`, or for `messages` as the chat template makes them.

    Raises ApiError.
    """
    prompt = fields.values.get("prompt")
    if "messages" in fields.values:
        count, _, _ = chat_tokens(fields)
    elif isinstance(prompt, str):
        count = count_tokens(prompt)
    else:
        raise ApiError(400, "give prompt, a string, or messages.", param="prompt")
    # Numbers that stand for words only here: they follow from the position, so that no vocabulary is needed.
    tokens = [number % _VOCABULARY for number in range(count)]
    return {"count": count, "max_model_len": max_model_len, "tokens": tokens, "token_strs": None}


def detokenize(fields: Fields) -> dict[str, Any]:
    """The answer to `/detokenize`. Raises ApiError."""
    tokens = fields.values.get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise ApiError(400, "tokens must be a list of integers.", param="tokens")
    return {"prompt": " ".join(f"token{token}" for token in tokens)}


def rerank(fields: Fields, model: str) -> tuple[dict[str, Any], int]:
    """The answer to `/rerank`, best first, and the tokens that were read. Raises ApiError."""
    query = fields.values.get("query")
    documents = fields.strings("documents")
    if not isinstance(query, str) or not documents:
        raise ApiError(400, "query must be a string and documents a list of strings.", param="documents")
    top = fields.integer("top_n", 0, 2**31) or len(documents)
    scored = sorted(((_match(query, text), index) for index, text in enumerate(documents)), reverse=True)
    results = [
        {"index": index, "document": {"text": documents[index], "multi_modal": None}, "relevance_score": score}
        for score, index in scored[:top]
    ]
    tokens = sum(count_tokens(query) + count_tokens(text) for text in documents)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": f"rerank-{_id(fields)}", "model": model, "usage": usage, "results": results}, tokens


def score(fields: Fields, model: str) -> tuple[dict[str, Any], int]:
    """The answer to `/score` of one text against one or several, and the tokens read. Raises ApiError."""
    first = fields.strings("text_1") or fields.strings("queries")
    second = fields.strings("text_2") or fields.strings("documents")
    if not second or len(first) not in (1, len(second)):
        raise ApiError(400, "text_1 must be one text, or as many as text_2.", param="text_1")
    pairs = list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))
    data = [{"index": index, "object": "score", "score": _match(*pair)} for index, pair in enumerate(pairs)]
    tokens = sum(count_tokens(one) + count_tokens(other) for one, other in pairs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    body = {"id": f"score-{_id(fields)}", "object": "list", "model": model, "data": data, "usage": usage}
    return body, tokens


def _match(one: str, other: str) -> float:
    """From 0 to 1: words in common count first, and equal texts match wholly."""
    words, others = set(one.lower().split()), set(other.lower().split())
    common = len(words & others) / max(1, len(words | others))
    product = sum(a * b for a, b in zip(embed(one, _DIMENSIONS), embed(other, _DIMENSIONS), strict=True))
    return min(1.0, max(0.0, 0.9 * common + 0.05 * (1 + product)))


def _id(fields: Fields) -> str:
    return fields.request_id or secrets.token_hex(8)
