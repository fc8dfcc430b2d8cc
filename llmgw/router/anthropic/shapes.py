"""What is read of Anthropic's requests and of chat completions, as msgspec structs.

They are lenient where nothing depends on it: fields that are not named here are skipped.
"""

from __future__ import annotations

import msgspec

NO_JSON = msgspec.Raw()


class Source(msgspec.Struct):
    """Where an image or a document is."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class Block(msgspec.Struct):
    """A content block of any type: the types share one struct, since each needs a few of its fields only."""

    type: str
    text: str | None = None
    thinking: str | None = None
    source: Source | None = None
    title: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = NO_JSON
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None


class Message(msgspec.Struct):
    """One turn."""

    role: str
    content: str | list[Block]


class Tool(msgspec.Struct):
    """A tool that the client runs, or (by `type`) one that Anthropic would run."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = NO_JSON
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    """Whether a tool is called, and which."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(msgspec.Struct):
    """Who asks."""

    user_id: str | None = None


class OutputFormat(msgspec.Struct):
    """The form that the answer must have."""

    type: str
    schema: msgspec.Raw = NO_JSON


class OutputConfig(msgspec.Struct):
    """How much effort, and in which form."""

    effort: str | None = None
    format: OutputFormat | None = None


class MessagesRequest(msgspec.Struct):
    """The body of `/v1/messages` and of `/v1/messages/count_tokens`."""

    model: str
    messages: list[Message]
    max_tokens: int | None = None
    system: str | list[Block] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None


# Chat completions. What engines say beside OpenAI's own fields: `reasoning_content` (SGLang, llama.cpp, earlier
# vLLM) or `reasoning` (vLLM), and which stop sequence was met: `stop_reason` (vLLM) or `matched_stop` (SGLang).


class Function(msgspec.Struct):
    """A call's name and arguments, whole or a part of them."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    """A call, whole or a part of one; `index` tells parts of the same call."""

    index: int = 0
    id: str | None = None
    function: Function | None = None


class Said(msgspec.Struct):
    """A message, or in a stream the next part of one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    """One choice; `message` where the answer is whole and `delta` in a stream."""

    index: int = 0
    message: Said | None = None
    delta: Said | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None


class PromptDetails(msgspec.Struct):
    """Of the prompt's tokens."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Tokens of one request."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Completion(msgspec.Struct):
    """A chat completion, or a chunk of one. `error` stands in its place when an engine fails in a stream."""

    id: str = ""
    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NO_JSON
