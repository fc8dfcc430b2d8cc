"""Anthropic's `/v1/messages` → OpenAI's `/v1/chat/completions`: the request's body.

Pure. What has no equal there and would change the answer is refused with a sentence; what would not is left out:
`cache_control`, `thinking`, `service_tier`, `container`, `redacted_thinking` blocks.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from llmgw.router.anthropic.shapes import Block, Message, MessagesRequest, Source, Tool, ToolChoice
from llmgw.router.errors import ApiError

_decode = msgspec.json.Decoder(MessagesRequest).decode
_encode = msgspec.json.Encoder().encode
_AT = re.compile(r" - at `\$\.?(.*)`$")
_EFFORTS = {"xhigh": "high", "max": "high"}


def read_messages(body: bytes) -> MessagesRequest:
    """Read a body that was found to be JSON with a model. Raises ApiError (400) that names the field."""
    try:
        request = _decode(body)
    except msgspec.ValidationError as error:
        at = _AT.search(str(error))
        where = f"{at[1]}: " if at is not None and at[1] else ""
        raise _wrong(f"{where}{_AT.sub('', str(error))}.", at[1] if at is not None else None) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise _wrong(f"The body cannot be read: {error}.", None) from None
    if not request.messages:
        raise _wrong("messages: at least one message is needed.", "messages")
    return request


def to_chat(request: MessagesRequest) -> bytes:
    """The body of a chat completion that asks for the same. Raises ApiError (400)."""
    limit = request.max_tokens
    if limit is None or limit < 1:
        raise _wrong("max_tokens: a whole number of at least 1 is needed.", "max_tokens")
    chat: dict[str, Any] = {"model": request.model, "messages": _messages(request), "max_tokens": limit}
    if request.stream:
        chat["stream"] = True
        chat["stream_options"] = {"include_usage": True}
    if request.stop_sequences:
        chat["stop"] = request.stop_sequences
    given = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "user": request.metadata.user_id if request.metadata is not None else None,
    }
    chat.update({name: value for name, value in given.items() if value is not None})
    if request.tools:
        chat["tools"] = _tools(request.tools)
        if request.tool_choice is not None:
            _choose_tool(chat, request.tool_choice)
    _shape_output(chat, request)
    if request.messages[-1].role == "assistant":
        # The answer goes on where the last message stops: vLLM and SGLang want to be told, llama.cpp does so.
        chat["continue_final_message"] = True
        chat["add_generation_prompt"] = False
    return _encode(chat)


def to_tokenize(request: MessagesRequest) -> bytes:
    """The body of vLLM's `/tokenize`, which counts what the chat template makes of messages. Raises ApiError."""
    asked: dict[str, Any] = {"model": request.model, "messages": _messages(request)}
    if request.tools:
        asked["tools"] = _tools(request.tools)
    return _encode(asked)


def _shape_output(chat: dict[str, Any], request: MessagesRequest) -> None:
    config = request.output_config
    if config is None:
        return
    if config.effort is not None:
        chat["reasoning_effort"] = _EFFORTS.get(config.effort, config.effort)
    if config.format is not None:
        if config.format.type != "json_schema" or not _is_object(config.format.schema):
            raise _wrong(
                "output_config.format: only json_schema with a schema is known here.", "output_config.format"
            )
        schema = {"name": "output", "schema": config.format.schema, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}


def _messages(request: MessagesRequest) -> list[dict[str, Any]]:
    chat: list[dict[str, Any]] = []
    if request.system:
        chat.append({"role": "system", "content": _only_text(request.system, "system")})
    for number, message in enumerate(request.messages):
        at = f"messages.{number}"
        if message.role == "user":
            _user(chat, message, at)
        elif message.role == "assistant":
            chat.append(_assistant(message, at))
        elif message.role == "system":
            chat.append({"role": "system", "content": _only_text(message.content, f"{at}.content")})
        else:
            raise _wrong(f"{at}.role: {message.role[:40]!r} is none of user, assistant, system.", f"{at}.role")
    return chat


def _user(chat: list[dict[str, Any]], message: Message, at: str) -> None:
    """A turn of the user: results of tools are messages of their own there, before what else is said."""
    if isinstance(message.content, str):
        chat.append({"role": "user", "content": message.content})
        return
    parts: list[dict[str, Any]] = []
    for number, block in enumerate(message.content):
        where = f"{at}.content.{number}"
        if block.type == "tool_result":
            text, shown = _tool_result(block, where)
            chat.append(
                {"role": "tool", "tool_call_id": _needed(block.tool_use_id, where, "tool_use_id"), **text}
            )
            parts += shown
        else:
            parts.append(_part(block, where))
    if parts:
        chat.append({"role": "user", "content": _joined(parts)})


def _tool_result(block: Block, at: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A tool's message, and the images that can only be shown behind it."""
    content = block.content or ""
    parts = (
        [{"type": "text", "text": content}]
        if isinstance(content, str)
        else [_part(inner, f"{at}.content.{number}") for number, inner in enumerate(content)]
    )
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if block.is_error:
        text = f"Error: {text}"
    return {"content": text}, [part for part in parts if part["type"] != "text"]


def _assistant(message: Message, at: str) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant"}
    if isinstance(message.content, str):
        said["content"] = message.content
        return said
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(message.content):
        where = f"{at}.content.{number}"
        if block.type == "text":
            texts.append(_needed(block.text, where, "text"))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            if not _is_object(block.input):
                raise _wrong(f"{where}.input: an object is needed.", f"{where}.input")
            function = {"name": _needed(block.name, where, "name"), "arguments": _json_text(block.input, where)}
            calls.append({"id": _needed(block.id, where, "id"), "type": "function", "function": function})
        elif block.type != "redacted_thinking":
            raise _unknown_block(block, where)
    said["content"] = "".join(texts) if texts or not calls else None
    if any(thoughts):
        said["reasoning_content"] = "\n".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    return said


def _part(block: Block, at: str) -> dict[str, Any]:
    """A block of a user's turn as a part of a message."""
    if block.type == "text":
        return {"type": "text", "text": _needed(block.text, at, "text")}
    if block.type == "image" and block.source is not None:
        return {"type": "image_url", "image_url": {"url": _image_url(block.source, f"{at}.source")}}
    if block.type == "document" and block.source is not None and block.source.type == "text":
        text = _needed(block.source.data, f"{at}.source", "data")
        return {"type": "text", "text": f"{block.title}\n\n{text}" if block.title else text}
    raise _unknown_block(block, at)


def _image_url(source: Source, at: str) -> str:
    if source.type == "url":
        return _needed(source.url, at, "url")
    if source.type == "base64":
        kind = _needed(source.media_type, at, "media_type")
        return f"data:{kind};base64,{_needed(source.data, at, 'data')}"
    raise _wrong(f"{at}.type: {source.type[:40]!r} is none of base64, url.", f"{at}.type")


def _only_text(content: str | list[Block], at: str) -> str:
    if isinstance(content, str):
        return content
    for number, block in enumerate(content):
        if block.type != "text":
            raise _unknown_block(block, f"{at}.{number}")
    return "\n".join(_needed(block.text, f"{at}.{number}", "text") for number, block in enumerate(content))


def _joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Text alone as one string: there are chat templates that know nothing else."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _tools(tools: list[Tool]) -> list[dict[str, Any]]:
    chat = []
    for number, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            raise _wrong(
                f"tools.{number}.type: {tool.type[:60]!r} is a tool that Anthropic's own service runs; "
                "here tools are run by the client, give name and input_schema.",
                f"tools.{number}.type",
            )
        if not _is_object(tool.input_schema):
            raise _wrong(f"tools.{number}.input_schema: an object is needed.", f"tools.{number}.input_schema")
        function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
        if tool.description is not None:
            function["description"] = tool.description
        if tool.strict is not None:
            function["strict"] = tool.strict
        chat.append({"type": "function", "function": function})
    return chat


def _choose_tool(chat: dict[str, Any], choice: ToolChoice) -> None:
    if choice.type == "tool":
        name = _needed(choice.name, "tool_choice", "name")
        chat["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif choice.type in ("auto", "any", "none"):
        chat["tool_choice"] = "required" if choice.type == "any" else choice.type
    else:
        raise _wrong(
            f"tool_choice.type: {choice.type[:40]!r} is none of auto, any, tool, none.", "tool_choice.type"
        )
    if choice.disable_parallel_tool_use is not None:
        chat["parallel_tool_calls"] = not choice.disable_parallel_tool_use


def _is_object(raw: msgspec.Raw) -> bool:
    return bytes(raw).lstrip()[:1] == b"{"


def _json_text(raw: msgspec.Raw, at: str) -> str:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError:  # what is skipped in reading is not looked at
        raise _wrong(f"{at}.input: it is not UTF-8.", f"{at}.input") from None


def _needed(value: str | None, at: str, name: str) -> str:
    if value is None:
        raise _wrong(f"{at}.{name}: it is missing.", f"{at}.{name}")
    return value


def _unknown_block(block: Block, at: str) -> ApiError:
    return _wrong(
        f"{at}: a block of the type {block.type[:60]!r} cannot be put to this model here; its engine is spoken "
        "to in chat completions, which have text, images (base64, url), tool calls and their results.",
        at,
    )


def _wrong(message: str, param: str | None) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)
