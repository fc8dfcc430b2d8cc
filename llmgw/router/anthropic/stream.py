"""The chunks of a chat completion → the events of Anthropic's stream, wherever the bytes are split. Pure.

The order is Anthropic's: message_start, then for each block its start, deltas and stop, then message_delta with
the reason and the usage, then message_stop (platform.claude.com/docs, streaming messages).
"""

from __future__ import annotations

from typing import Any

import msgspec

from llmgw.router.anthropic.answer import message_id, read_completion, stop_reason, tool_use_id, usage_of
from llmgw.router.anthropic.errors import error_event
from llmgw.router.anthropic.shapes import Choice, Said, ToolCall, Usage
from llmgw.router.engine_errors import read_error
from llmgw.router.errors import ApiError
from llmgw.router.event_stream import EventReader
from llmgw.router.filters import BadAnswer

_encode = msgspec.json.Encoder().encode
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


class StreamFilter:
    """One streamed answer."""

    def __init__(self, model: str, stop_sequences: list[str], request_id: bytes) -> None:
        """`model` is the name that the client asked for."""
        self._model = model
        self._stop_sequences = stop_sequences
        self._request_id = request_id
        self._reader = EventReader()
        self._comments = 0
        self._id = ""
        self._begun = False
        self._over = False
        self._ended_by: Choice | None = None
        """The choice that told why the answer ends; what it cost comes after it."""
        self._usage: Usage | None = None
        self._blocks = 0
        self._open = ""
        """The kind of the block that is open: text, thinking or tool."""
        self._tool = -1
        """The engine's index of the call whose block is open or was last."""
        self._started: set[int] = set()
        """The engine's indices of all calls so far."""

    def feed(self, payload: bytes) -> bytes:
        """Events of the engine in any portions → Anthropic's events. Raises BadAnswer."""
        try:
            events = self._reader.feed(payload)
        except ValueError as error:
            raise BadAnswer(f"sent {error}") from None
        out: list[bytes] = []
        for data in events:
            if self._over:
                break
            if data == b"[DONE]":
                self._finish(out)
            else:
                self._chunk(data, out)
        if self._reader.comments != self._comments:
            self._comments = self._reader.comments
            if self._begun and not self._over:
                out.append(_PING)
        return b"".join(out)

    def end(self) -> bytes:
        """The engine's body was whole. Raises BadAnswer when the answer in it was not."""
        out: list[bytes] = []
        if not self._over:
            self._finish(out)
        return b"".join(out)

    def broken(self, error: ApiError) -> bytes:
        """An error event, which ends what has begun; nothing when the last word has been said.

        The answer is whole then, whatever became of its engine: it is not to be cut."""
        if self._over:
            return b""
        self._over = True
        return error_event(error.status, error.message, self._request_id)

    def _chunk(self, data: bytes, out: list[bytes]) -> None:
        chunk = read_completion(data)
        if bytes(chunk.error) not in (b"", b"null"):
            self._over = True
            out.append(error_event(500, read_error(data, 500, "").message, self._request_id))
            return
        if not self._begun:
            self._begin(chunk.id, out)
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices:
            if choice.index:
                continue
            if choice.delta is not None:
                self._delta(choice.delta, out)
            if choice.finish_reason is not None:
                self._ended_by = choice

    def _begin(self, completion_id: str, out: list[bytes]) -> None:
        self._begun = True
        self._id = completion_id
        message: dict[str, Any] = {
            "id": message_id(completion_id),
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            # What the prompt took is told at the end, by message_delta.
            "usage": usage_of(None),
        }
        out += (_event("message_start", message=message), _PING)

    def _delta(self, said: Said, out: list[bytes]) -> None:
        thinking = said.reasoning_content or said.reasoning
        if thinking:
            if self._open != "thinking":
                self._start("thinking", {"type": "thinking", "thinking": "", "signature": ""}, out)
            self._part({"type": "thinking_delta", "thinking": thinking}, out)
        text = said.content or said.refusal
        if text:
            if self._open != "text":
                self._start("text", {"type": "text", "text": ""}, out)
            self._part({"type": "text_delta", "text": text}, out)
        for call in said.tool_calls or ():
            self._call(call, out)

    def _call(self, part: ToolCall, out: list[bytes]) -> None:
        """A part of a call: its name comes first, its arguments follow in pieces."""
        function = part.function
        arguments = (function.arguments if function is not None else None) or ""
        if self._open != "tool" or self._tool != part.index:
            if part.index in self._started:
                raise BadAnswer("went back to a tool call that it had left for another")
            name = function.name if function is not None else None
            if not name:
                raise BadAnswer("sent a tool call without its name")
            self._started.add(part.index)
            self._tool = part.index
            identity = tool_use_id(part, self._id, part.index)
            self._start("tool", {"type": "tool_use", "id": identity, "name": name, "input": {}}, out)
        if arguments:
            self._part({"type": "input_json_delta", "partial_json": arguments}, out)

    def _start(self, kind: str, block: dict[str, Any], out: list[bytes]) -> None:
        self._stop(out)
        self._open = kind
        out.append(_event("content_block_start", index=self._blocks, content_block=block))

    def _part(self, delta: dict[str, Any], out: list[bytes]) -> None:
        out.append(_event("content_block_delta", index=self._blocks, delta=delta))

    def _stop(self, out: list[bytes]) -> None:
        if self._open:
            out.append(_event("content_block_stop", index=self._blocks))
            self._blocks += 1
            self._open = ""

    def _finish(self, out: list[bytes]) -> None:
        if self._ended_by is None:
            raise BadAnswer("ended its answer without saying why")
        reason, sequence = stop_reason(self._ended_by, self._stop_sequences, called=bool(self._started))
        self._stop(out)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        out += (_event("message_delta", delta=delta, usage=usage_of(self._usage)), _event("message_stop"))
        self._over = True
