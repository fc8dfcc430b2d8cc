"""OpenAI's chat completion → Anthropic's message, whole. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from llmgw.router.anthropic.shapes import Choice, Completion, ToolCall, Usage
from llmgw.router.filters import BadAnswer

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_decode = msgspec.json.Decoder(Completion).decode
_decode_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def read_completion(body: bytes) -> Completion:
    """A completion or a chunk of one. Raises BadAnswer."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"sent what is no chat completion ({error})") from None


def to_message(body: bytes, model: str, stop_sequences: list[str]) -> bytes:
    """The message for a client that asked for `model`. Raises BadAnswer."""
    completion = read_completion(body)
    choice = completion.choices[0] if completion.choices else None
    said = choice.message if choice is not None else None
    if choice is None or said is None:
        raise BadAnswer("sent a chat completion without a message")
    content: list[dict[str, Any]] = []
    thinking = said.reasoning_content or said.reasoning
    if thinking:
        content.append({"type": "thinking", "thinking": thinking, "signature": ""})
    text = said.content or said.refusal
    if text:
        content.append({"type": "text", "text": text})
    for number, call in enumerate(said.tool_calls or ()):
        content.append(_tool_use(call, completion.id, number))
    reason, sequence = stop_reason(choice, stop_sequences, called=bool(said.tool_calls))
    return _encode(
        {
            "id": message_id(completion.id),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage_of(completion.usage),
        }
    )


def message_id(completion_id: str) -> str:
    """Anthropic's ids begin with `msg_`; the rest is the engine's own, so that its log can be searched for it."""
    return f"msg_{completion_id}"


def tool_use_id(call: ToolCall, completion_id: str, number: int) -> str:
    """The call's own id, or one that is made where an engine gives none."""
    return call.id or f"toolu_{completion_id}_{number}"


def stop_reason(choice: Choice, stop_sequences: list[str], *, called: bool) -> tuple[str, str | None]:
    """Why the message ended, and by which stop sequence. `called`: it holds tool calls, whatever the engine says.

    Raises BadAnswer where it did not end: vLLM says `abort` when it is stopped in the middle.
    """
    reason = choice.finish_reason
    if reason == "abort" or reason is None:
        raise BadAnswer("stopped before its answer was finished")
    if called and reason == "stop":
        return "tool_use", None
    if reason == "stop":
        for met in (choice.stop_reason, choice.matched_stop):
            if isinstance(met, str) and met in stop_sequences:
                return "stop_sequence", met
    return _STOP_REASONS.get(reason, "end_turn"), None


def usage_of(usage: Usage | None) -> dict[str, int]:
    """Anthropic counts the tokens that came from a cache apart from the others."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    cached = (usage.prompt_tokens_details.cached_tokens or 0) if usage.prompt_tokens_details is not None else 0
    return {
        "input_tokens": max(0, (usage.prompt_tokens or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens or 0,
    }


def to_count(body: bytes) -> bytes:
    """The answer of vLLM's `/tokenize` → Anthropic's of `count_tokens`. Raises BadAnswer."""
    try:
        count = msgspec.json.decode(body, type=_Count).count
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"counted no tokens of messages ({error})") from None
    return _encode({"input_tokens": count})


class _Count(msgspec.Struct):
    count: int


def _tool_use(call: ToolCall, completion_id: str, number: int) -> dict[str, Any]:
    function = call.function
    arguments = (function.arguments if function is not None else None) or "{}"
    try:
        given: Any = _decode_arguments(arguments)
    except (msgspec.DecodeError, RecursionError):
        # What a model wrote need not be JSON, least of all when max_tokens cut it off; Anthropic's own advice
        # is this key (platform.claude.com/docs, fine-grained tool streaming).
        given = {"INVALID_JSON": arguments}
    name = (function.name if function is not None else None) or ""
    return {"type": "tool_use", "id": tool_use_id(call, completion_id, number), "name": name, "input": given}
