"""A stream whose head the client gets before any engine has answered, so that comments can keep it alive.

What comes later follows a head that cannot be taken back: an engine's stream goes on as it is, and whatever else
comes (its error, or the gateway's) ends it as an error event. Pure: parsed heads in, bytes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from llmgw.router.engine_errors import read_error
from llmgw.router.errors import ApiError
from llmgw.router.filters import AnswerFilter

ERROR_BYTES_MAX = 64 * 1024
"""Of an engine's error answer; what is longer is replaced by a sentence."""

LAST_CHUNK = b"0\r\n\r\n"


class _Told(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Told).decode


class EarlyAnswer:
    """The answer of one request until an engine's comes.

    `chunked` is False for a client of HTTP/1.0, which gets a bare body.
    """

    __slots__ = ("_chunked",)

    def __init__(self, *, chunked: bool) -> None:
        self._chunked = chunked

    def head(self, own: bytes, lines: Sequence[bytes], *, keep_alive: bool) -> bytes:
        """The head; `own` are further lines with their ends, `lines` without."""
        parts = [
            b"HTTP/1.1 200 OK",
            b"content-type: text/event-stream",
            b"cache-control: no-cache",
            b"x-accel-buffering: no",
            *lines,
        ]
        if self._chunked:
            parts.append(b"transfer-encoding: chunked")
        if not keep_alive:
            parts.append(b"connection: close")
        return b"%b\r\n%b\r\n" % (b"\r\n".join(parts), own)

    def comment(self, text: bytes) -> bytes:
        """A line that clients of event streams skip."""
        return self._framed(b": %b\n\n" % text)

    def error(self, event: bytes) -> bytes:
        """The end of a stream that no engine has begun, with `event` as its only words."""
        return self._framed(event) + (LAST_CHUNK if self._chunked else b"")

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data


class AnswerAsEvent:
    """An engine's answer that is no stream, behind a head that says it is one: told as one error event."""

    __slots__ = ("_body", "_event", "_filter", "_named", "_said", "status")

    def __init__(
        self, said: int, filter: AnswerFilter | None, event: Callable[[ApiError], bytes], *, named: bool
    ) -> None:
        """`said` is the engine's status. `filter` makes of its answer what it would be without that head, and
        `event` an event of an error.

        `named`: events have a name in the API that was asked, as in Anthropic's.
        """
        self._said = said
        self.status = said if said >= 400 else 502
        """What the error that is told counts as: an engine that streams nothing has failed, whatever it says."""
        self._filter = filter
        self._event = event
        self._named = named
        self._body = bytearray()

    def feed(self, payload: bytes) -> bytes:
        """Nothing comes out before it is whole."""
        if self._filter is not None:
            payload = self._filter.feed(payload)
        if len(self._body) <= ERROR_BYTES_MAX:
            self._body += payload
        return b""

    def end(self) -> bytes:
        """The event."""
        if self._filter is not None:
            self._body += self._filter.end()
        body = bytes(self._body)
        message = f"The engine answered {self._said} and no stream."
        if len(body) <= ERROR_BYTES_MAX:
            try:
                line = msgspec.json.format(body, indent=-1)
                told = bytes(_decode(line).error)
            except (msgspec.MsgspecError, RecursionError):
                told = b""
            if told[:1] == b"{" and (self._filter is not None or not self._named):
                return b"%bdata: %b\n\n" % (b"event: error\n" if self._named else b"", line)
            if told not in (b"", b"null"):
                message = read_error(body, self._said, "").message
        return self.broken(ApiError(self.status, message, type="server_error", code="engine_failed"))

    def broken(self, error: ApiError) -> bytes:
        """Nothing of it was told: the gateway's own words are."""
        return self._event(error)
