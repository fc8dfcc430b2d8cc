"""A stream whose head the client gets before any engine has answered, so that comments can keep it alive.

What comes later follows a head that cannot be taken back: an engine's stream goes on as it is, and whatever else
comes (its error, or the gateway's) ends it as an error event. Pure: parsed heads in, bytes out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from llmgw.router.answer import is_event_stream
from llmgw.router.dechunk import Dechunker
from llmgw.router.errors import ApiError
from llmgw.router.response_parser import CHUNKED, ResponseHead

ERROR_BYTES_MAX = 64 * 1024
"""Of an engine's error answer; what is longer is replaced by a sentence."""

LAST_CHUNK = b"0\r\n\r\n"


class _Told(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Told).decode


class EarlyAnswer:
    """The answer of one request. `chunked` is False for a client of HTTP/1.0, which gets a bare body.

    From the engine's head on, `feed` turns what comes of its body into what the client gets, unless it `passes`.
    """

    __slots__ = ("_body", "_chunked", "_dechunker", "_head", "passes")

    def __init__(self, *, chunked: bool) -> None:
        self._chunked = chunked
        self._head: ResponseHead | None = None
        self._dechunker: Dechunker | None = None
        self.passes = False
        """The engine's chunks go to the client as they are, and need not be fed."""
        self._body: bytearray | None = None
        """Of an answer that is no stream, until it is whole."""

    def head(self, request_id: bytes, lines: Sequence[bytes], *, keep_alive: bool) -> bytes:
        """The head; `lines` are further ones, without their ends."""
        parts = [
            b"HTTP/1.1 200 OK",
            b"content-type: text/event-stream",
            b"cache-control: no-cache",
            b"x-accel-buffering: no",
            b"x-request-id: " + request_id,
            *lines,
        ]
        if self._chunked:
            parts.append(b"transfer-encoding: chunked")
        if not keep_alive:
            parts.append(b"connection: close")
        return b"\r\n".join(parts) + b"\r\n\r\n"

    def comment(self, text: bytes) -> bytes:
        """A line that clients of event streams skip."""
        return self._framed(b": %b\n\n" % text)

    def error(self, error: ApiError) -> bytes:
        """The end of a stream that no engine has begun."""
        return self._framed(error.sse_event()) + self._end()

    def begin(self, head: ResponseHead) -> None:
        """An engine has answered with this head."""
        self._head = head
        stream = head.status < 300 and is_event_stream(head)
        self.passes = stream and head.framing == CHUNKED and self._chunked
        if head.framing == CHUNKED and not self.passes:
            self._dechunker = Dechunker()
        if not stream:
            self._body = bytearray()

    def feed(self, data: bytes) -> bytes:
        """What the client gets of these bytes of the engine's body."""
        if self._dechunker is not None:
            data = self._dechunker.feed(data)
        if self._body is None:
            return self._framed(data) if data else b""
        if len(self._body) <= ERROR_BYTES_MAX:
            self._body += data
        return b""

    def done(self) -> bytes:
        """What ends it when the engine's answer is whole."""
        if self.passes:
            return b""
        if self._body is None:
            return self._end()
        return self._framed(b"data: %b\n\n" % self._as_event(bytes(self._body))) + self._end()

    def broken(self, event: bytes) -> bytes:
        """What ends a stream that broke off, with `event` as its last words."""
        return self._framed(b"\n\n" + event) + self._end()

    def _as_event(self, body: bytes) -> bytes:
        """An engine's answer that is no stream, on one line: its error if it is JSON, else a sentence."""
        assert self._head is not None
        if len(body) <= ERROR_BYTES_MAX:
            try:
                line = msgspec.json.format(body, indent=-1)
                return line if _decode(line).error else b'{"error":%b}' % line
            except msgspec.MsgspecError:
                pass
        return ApiError(
            self._head.status,
            f"The engine answered {self._head.status} and no stream.",
            type="server_error",
            code="engine_failed",
        ).body()

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def _end(self) -> bytes:
        return LAST_CHUNK if self._chunked else b""
