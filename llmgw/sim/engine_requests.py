"""Reads the bodies that clients send to the simulated engine, and refuses the wrong ones as vLLM does."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from llmgw.sim.engine_text import count_tokens, message_text

CHOICES_MAX = 128
TEMPLATE_TOKENS = 3
"""What a chat template adds to each message."""
COMPLETION_TOKENS_DEFAULT = 16


class ApiError(Exception):
    """An answer in OpenAI's error shape."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        """`{"error": {…}}`."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


@dataclass
class Fields:
    """A JSON object with typed reads that refuse wrong values."""

    values: dict[str, Any]
    request_id: str = ""

    @classmethod
    def parse(cls, body: bytes) -> Fields:
        """Read a body. Raises ApiError."""
        if not body:
            raise ApiError(400, "the body is empty; a JSON object is required", kind="Bad Request", param="body")
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not JSON: {error}", kind="Bad Request", param="body") from None
        if not isinstance(values, dict):
            raise ApiError(400, "the body is not a JSON object", kind="Bad Request", param="body")
        return cls(values)

    def integer(self, name: str, low: int, high: int) -> int | None:
        """A whole number from `low` to `high`, or None when it is absent or null."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ApiError(400, f"{name} must be an integer, got {value!r}.", param=name)
        if value < low:
            raise ApiError(400, f"{name} must be at least {low}, got {value}.", param=name)
        if value > high:
            raise ApiError(400, f"{name} must be at most {high}, got {value}.", param=name)
        return value

    def flag(self, name: str) -> bool:
        """A boolean; False when it is absent or null."""
        value = self.values.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise ApiError(400, f"{name} must be a boolean, got {value!r}.", param=name)

    def table(self, name: str) -> dict[str, Any]:
        """An object; empty when it is absent or null."""
        value = self.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ApiError(400, f"{name} must be an object, got {value!r}.", param=name)
        return value

    def strings(self, name: str) -> list[str]:
        """A string or a list of strings, as a list without empty ones."""
        value = self.values.get(name)
        values = [value] if isinstance(value, str) else value or []
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise ApiError(400, f"{name} must be a string or a list of strings, got {value!r}.", param=name)
        return [each for each in values if each]


@dataclass(kw_only=True)
class Generation:
    """A request for text, read and checked."""

    chat: bool
    id: str
    model: str
    prompts: list[str]
    prompt_tokens: int
    max_tokens: int
    contexts: list[str] = field(default_factory=list)
    """Everything that each prompt consists of, as a prefix cache sees it."""
    cached_tokens: int = 0
    n: int = 1
    stop: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    stream: bool = False
    include_usage: bool = False
    tool: tuple[str, Any] | None = None
    """A function that must be called: its name and the schema of its arguments."""


def read_chat(fields: Fields, model: str, max_model_len: int) -> Generation:
    """Read the body of `/v1/chat/completions`. Raises ApiError."""
    tokens, prompt, context = chat_tokens(fields)
    limit = fields.integer("max_completion_tokens", 1, max_model_len)
    limit = limit or fields.integer("max_tokens", 1, max_model_len)
    generation = _read(fields, model, max_model_len, [prompt], tokens, limit, chat=True)
    generation.contexts = [context]
    return generation


def chat_tokens(fields: Fields) -> tuple[int, str, str]:
    """How many tokens a chat template makes of `messages`, what the user said last, and all that was said.

    Raises ApiError.
    """
    messages = fields.values.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ApiError(400, "messages must be a list of at least one message.", param="messages")
    tokens = 0
    prompt = ""
    texts = []
    for message in messages:
        text, media_tokens = message_text(message)
        texts.append(text)
        tokens += count_tokens(text) + media_tokens + TEMPLATE_TOKENS
        if message.get("role") == "user":
            prompt = text
    return tokens, prompt, " ".join(texts)


def read_completion(fields: Fields, model: str, max_model_len: int) -> Generation:
    """Read the body of `/v1/completions`. Raises ApiError."""
    prompts = prompts_of(fields.values.get("prompt"), "prompt")
    tokens = sum(count_tokens(prompt) for prompt in prompts)
    limit = fields.integer("max_tokens", 1, max_model_len) or COMPLETION_TOKENS_DEFAULT
    return _read(fields, model, max_model_len, prompts, tokens, limit, chat=False)


def prompts_of(value: Any, name: str) -> list[str]:
    """A text, texts, tokens, or lists of tokens, as a list of texts. Raises ApiError."""
    items = value if isinstance(value, list) and value and not _is_tokens(value) else [value]
    texts = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
        elif _is_tokens(item):
            texts.append(" ".join(f"token{number}" for number in item))
        else:
            raise ApiError(400, f"{name} must be a string, tokens, or a list of either.", param=name)
    return texts


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _read(
    fields: Fields,
    model: str,
    max_model_len: int,
    prompts: list[str],
    tokens: int,
    limit: int | None,
    *,
    chat: bool,
) -> Generation:
    if tokens >= max_model_len:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{tokens} tokens. Please reduce the length of the input prompt.",
            param="input_text",
        )
    temperature = fields.values.get("temperature")
    if isinstance(temperature, (int, float)) and temperature < 0:
        raise ApiError(400, f"temperature must be non-negative, got {temperature}.", param="temperature")
    room = max_model_len - tokens
    return Generation(
        chat=chat,
        id=("chatcmpl-" if chat else "cmpl-") + (fields.request_id or secrets.token_hex(8)),
        model=model,
        prompts=prompts,
        contexts=prompts,
        prompt_tokens=tokens,
        max_tokens=min(limit or room, room),
        n=fields.integer("n", 1, CHOICES_MAX) or 1,
        stop=fields.strings("stop"),
        ignore_eos=fields.flag("ignore_eos"),
        stream=fields.flag("stream"),
        include_usage=bool(fields.table("stream_options").get("include_usage")),
        tool=_forced_tool(fields) if chat else None,
    )


def _forced_tool(fields: Fields) -> tuple[str, Any] | None:
    """The function that `tool_choice` forces: the one it names, or the first when it says `required`."""
    choice = fields.values.get("tool_choice")
    if choice in (None, "none", "auto"):
        return None
    tools = fields.values.get("tools")
    functions: dict[str, Any] = {}
    for tool in tools if isinstance(tools, list) else []:
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            functions[function["name"]] = function.get("parameters")
    if not functions:
        raise ApiError(400, "When using `tool_choice`, `tools` must be set.", param="tool_choice")
    if choice == "required":
        return next(iter(functions.items()))
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(name, str) or name not in functions:
        raise ApiError(400, f"tool_choice names no function of `tools`: {choice!r}.", param="tool_choice")
    return name, functions[name]
