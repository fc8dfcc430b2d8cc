"""Follows the framing of an engine's answer and hands its body on as it came, chunk framing included.

Pure: bytes in; body bytes and the end out. RFC 9112 is the source of every rule here.
"""

from __future__ import annotations

import re

from llmgw.router.known_heads import read_same
from llmgw.router.limits import HEAD_BYTES_MAX
from llmgw.router.response_head import CHUNKED, LENGTH, UNTIL_CLOSE, BadResponse, ResponseHead, read_head

# Size lines are hexadecimal digits and, rarely, extensions; 15 digits are more than any engine has to say.
SIZE_LINE_BYTES_MAX = 256
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_TRAILERS = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n)+")
_EVENT_END = b"\n\n\r\n"
_WRONG_END = "sent a chunk that does not end where it said"

_HEAD, _LENGTH, _CHUNKED, _UNTIL_CLOSE, _DONE = range(5)


_SHORT_LINE_BYTES = 6
_SIZES_MAX = 4096
_known_sizes: dict[bytes, int] = {}
"""How many bytes a chunk with a short size line has, that line and its end included: a stream's chunks are of few
sizes, and one is looked up quicker than it is read."""


def _remember_size(line: bytes, length: int) -> None:
    if len(line) <= _SHORT_LINE_BYTES and len(_known_sizes) < _SIZES_MAX:
        _known_sizes[line] = len(line) + length + 2


def whole_chunks(data: bytes, limit: int) -> int:
    """Where the last of the chunks ends that are whole before `limit`. `data` begins with a chunk and was parsed.

    Chunks with long size lines are not looked at, nor what comes behind one.
    """
    end = 0
    while True:
        after = data.find(b"\n", end, end + _SHORT_LINE_BYTES) + 1
        following = end + _known_sizes.get(data[end:after], 0)
        if following == end or following > limit:
            return end
        end = following


class ResponseParser:
    """One connection's answers, one at a time: `reset`, `feed` until done, `reset`.

    Framing is held back until payload follows it (an incomplete size line, a last chunk without its end), so
    that what `feed` returns is never framing alone, and so that after every return the body stands at a place
    from which it can be ended properly: see `chunk_left`.
    """

    __slots__ = (
        "_held",
        "_interim_bytes",
        "_last",
        "_left",
        "_state",
        "_tail",
        "done",
        "excess",
        "head",
        "open_at",
        "received",
        "whole_events",
    )

    def __init__(self) -> None:
        self.whole_events = True
        """Every chunk that has ended so far ended with a blank line, as engines end their events. It holds until
        another answer begins: who is handed the last bytes of this one may be so after a `reset`."""
        self.head: ResponseHead | None = None
        self.done = False
        """The answer is whole."""
        self.received = False
        """True when any byte of an answer has come."""
        self.excess = False
        """True when bytes came after the answer's end: the connection must not be used again."""
        self._interim_bytes = 0
        self._last: ResponseHead | None = None
        """The head that this connection's engine said last, when it had a length."""
        self._state = _HEAD
        self._held = b""
        self._left = 0
        self._tail = b""
        """The last bytes of an open chunk that lacks no more than its end."""
        self.open_at = 0
        """Where in the bytes last handed on the open chunk begins; 0 where it began before them."""

    def reset(self) -> None:
        """Ready for the next answer of the connection, after one that left it `reusable`."""
        self.head = None
        self.done = self.received = False
        self._state = _HEAD
        self._interim_bytes = self.open_at = 0

    def reusable(self) -> bool:
        """True when another request may go over this connection."""
        head = self.head
        return self.done and not self.excess and head is not None and head.keep_alive

    @property
    def chunk_left(self) -> int:
        """Bytes that the open chunk still lacks, its closing CRLF included; 0 between chunks."""
        return self._left if self._state == _CHUNKED else 0

    def feed(self, data: bytes) -> bytes:
        """Body bytes to hand on, as they came. Look at `head` and `done` afterwards. Raises BadResponse."""
        if self._state != _CHUNKED:
            return self._feed_other(data)
        # Chunks, and here since a stream's pass one by one.
        position = self._left
        size = len(data)
        known_sizes = _known_sizes
        if self._held:
            data = self._held + data
            size = len(data)
            self._held = b""
        elif (
            not position
            and known_sizes.get(data[: data.find(b"\n", 0, _SHORT_LINE_BYTES) + 1]) == size
            and data.endswith(_EVENT_END)
        ):
            return data  # one whole chunk of whole events, as nearly every read is; as below
        begin = 0
        if position:
            _check_chunk_end(data, position)
            if position <= size and self.whole_events:
                self.whole_events = (self._tail + data[:position]).endswith(_EVENT_END)
        while position < size:
            begin = position
            # A whole chunk of whole events, as nearly all are.
            after = data.find(b"\n", begin, begin + _SHORT_LINE_BYTES) + 1
            position = begin + known_sizes.get(data[begin:after], 0)
            if data[position - 4 : position] == _EVENT_END and begin < position <= size:
                if position == size:
                    self._left = 0
                    return data
                continue
            match = _SIZE_LINE.match(data, begin)
            if match is None:
                return self._hold_size_line(data, begin)
            length = int(match[1], 16)
            after = match.end()
            if not length:
                return self._last_chunk(data, begin, after)
            if length == 1:
                # Its byte and the end of the line before it look like the end of an event.
                self.whole_events = False
            else:
                _remember_size(match[0], length)
            if after == size:
                self._held = data[begin:]
                self._left = 0
                return data[:begin]
            position = after + length + 2
            if position <= size:
                if data[position - 4 : position] != _EVENT_END:
                    if data[position - 2 : position] != b"\r\n":
                        raise BadResponse(_WRONG_END)
                    self.whole_events = False
            elif position == size + 1:
                _check_chunk_end(data, position)
        self._left = left = position - size
        if left:
            self.open_at = begin
            self._tail = data[-4:] if left < 4 else b""
        return data

    def _feed_other(self, data: bytes) -> bytes:
        state = self._state
        if state == _LENGTH:
            left = self._left - len(data)
            if left > 0:
                self._left = left
                return data
            return self._end_of_length(data)
        if state == _UNTIL_CLOSE:
            return data
        if state == _HEAD:
            return self.feed_head(data)
        self.excess = self.excess or bool(data)
        return b""

    def close(self) -> bool:
        """The connection was closed in good order. True when that ends the answer, False when it cuts it."""
        if self._state == _UNTIL_CLOSE:
            self._end()
        return self.done

    def _end(self) -> None:
        self._state = _DONE
        self._left = 0
        self.done = True

    def feed_head(self, data: bytes) -> bytes:
        """The same while there is no `head`."""
        self.received = True
        if self._held:
            data = self._held + data
            self._held = b""
        last = self._last
        same = read_same(data, last.before, last.after) if last is not None else None
        if last is not None and same is not None:
            head: ResponseHead = last.__copy__()  # type: ignore[attr-defined]  # msgspec does not declare it
            end, length = same
            data = data[end:]
            self.head = head
            self.whole_events = True
            head.length = length
            return self._begin_length(data, length)
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0 or end > HEAD_BYTES_MAX:
                if len(data) > HEAD_BYTES_MAX:
                    raise BadResponse(f"sent a head that exceeds {HEAD_BYTES_MAX} bytes")
                if not b"HTTP/1.".startswith(data[:7]):
                    raise BadResponse("sent what does not begin with HTTP/1.1")
                self._held = data
                return b""
            head = read_head(data[: end + 2])
            data = data[end + 4 :]
            if head.status >= 200:
                break
            self._interim_bytes += end + 4
            if self._interim_bytes > HEAD_BYTES_MAX:
                raise BadResponse(f"sent interim answers that exceed {HEAD_BYTES_MAX} bytes")
            if head.status == 101:
                raise BadResponse("switched protocols without being asked")
        self.head = head
        self.whole_events = True
        framing = head.framing
        if framing == CHUNKED:
            self._state = _CHUNKED
            return self.feed(data) if data else b""
        if framing == UNTIL_CLOSE:
            self._state = _UNTIL_CLOSE
            return data
        if framing == LENGTH:
            self._last = head.like if head.before else None
        return self._begin_length(data, head.length)

    def _begin_length(self, data: bytes, length: int) -> bytes:
        left = length - len(data)
        if left > 0:
            self._state = _LENGTH
            self._left = left
            return data
        self._state = _DONE
        self.done = True
        if left:
            self.excess = True
            return data[:left]
        return data

    def _end_of_length(self, data: bytes) -> bytes:
        left = self._left
        self._end()
        if len(data) > left:
            self.excess = True
            return data[:left]
        return data

    def _hold_size_line(self, data: bytes, position: int) -> bytes:
        line = data[position : position + SIZE_LINE_BYTES_MAX + 1]
        if b"\n" in line or len(line) > SIZE_LINE_BYTES_MAX or (line[:1] not in b"0123456789abcdefABCDEF"):
            raise BadResponse(f"sent a chunk size that is none: {bytes(line[:20])!r}")
        self._held = line
        self._left = 0
        return data[:position]

    def _last_chunk(self, data: bytes, position: int, after: int) -> bytes:
        """The last chunk and its trailers are handed on whole or not at all."""
        if data.startswith(b"\r\n", after):
            end = after + 2
        else:
            blank = data.find(b"\r\n\r\n", after)
            if blank < 0:
                if len(data) - position > HEAD_BYTES_MAX:
                    raise BadResponse(f"sent trailers that exceed {HEAD_BYTES_MAX} bytes")
                self._held = data[position:]
                self._left = 0
                return data[:position]
            end = blank + 4
            # A client that takes a bare line end for one would read the rest as the next answer.
            if _TRAILERS.fullmatch(data, after, blank + 2) is None:
                raise BadResponse(f"sent trailers that are none: {bytes(data[after:][:40])!r}")
        self._end()
        if end < len(data):
            self.excess = True
            return data[:end]
        return data


def _check_chunk_end(data: bytes, position: int) -> None:
    """Raise unless a chunk that ends at `position` ends with CRLF, as far as that has come."""
    if position <= len(data):
        right = data.endswith(b"\r\n" if position > 1 else b"\n", max(0, position - 2), position)
    else:
        right = position > len(data) + 1 or data.endswith(b"\r")
    if not right:
        raise BadResponse(_WRONG_END)
