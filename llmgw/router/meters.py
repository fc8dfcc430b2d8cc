"""Watch an answer pass and find its usage: a stream's by its events, any other's at its beginning or end.

A stream's extra chunk, which the client did not ask for, is taken out here. Everything else passes as it came.
"""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec

from llmgw.router.dechunk import Dechunker
from llmgw.router.response_head import CHUNKED, LENGTH, ResponseHead
from llmgw.router.response_parser import ResponseParser, whole_chunks
from llmgw.router.usage_figures import Tokens, find_tokens, read_event

# An event that holds the usage of a stream has some hundred bytes; one that is longer is not waited for.
EVENT_BYTES_MAX = 16 * 1024
# Usage stands at the end of an answer, with small things behind it, or at its beginning (llama.cpp's embeddings).
HEAD_BYTES = 4 * 1024
TAIL_BYTES = 16 * 1024
KEPT_BYTES_MAX = 64 * 1024

# A blank line, in all three ways to end a line that a stream may use (the HTML standard, section 9.2.6). A CR at
# the end of what has come may be half of one.
_BLANK = re.compile(rb"(?:\r\n|\n|\r(?=[^\n])){2}")
_CHUNK_FRAMING = re.compile(rb"\r\n[0-9a-fA-F]{1,15}[ \t]*(?:;[^\r\n]*)?\r\n")
_NO_OBJECT = re.compile(rb"data: ?[^ {\r\n]")
_NAME = b'"usage"'
_LAST_CHUNK = b"0\r\n\r\n"
_CHUNK_BYTES = 6
"""What the framing adds to an event of less than 256 bytes."""
_CHUNK_END_BYTES = 2
_WHOLE_EVENT = b"\n\n\r\n"
"""How a chunk ends that ends with an event."""


class WholeMeter(msgspec.Struct, eq=False):
    """An answer that is no event stream: its beginning and its end are kept until it is over. A msgspec struct
    since one is made with nearly each request."""

    events: ClassVar[int] = 0
    rechunks: ClassVar[bool] = False
    told_all: ClassVar[bool] = True

    _chunked: bool
    """What comes has the chunk framing in it."""
    _head: bytes = b""
    _pieces: list[bytes] = []
    _size: int = 0

    def feed(self, data: bytes, done: bool) -> bytes:
        """What goes on to the client: all of it, as it came."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > KEPT_BYTES_MAX:
            self._forget_the_middle()
        return data

    def found(self) -> Tokens | None:
        """What was found. Looks for it anew each time."""
        pieces = self._pieces
        text = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._chunked:
            text = _CHUNK_FRAMING.sub(b"", text)
        found = find_tokens(text)
        return found if found is not None or not self._head else find_tokens(self._head)

    def _forget_the_middle(self) -> None:
        if not self._head:
            first = self._pieces[0]
            self._head = (first if len(first) >= HEAD_BYTES else b"".join(self._pieces))[:HEAD_BYTES]
        last = self._pieces[-1]
        tail = (last if len(last) >= TAIL_BYTES else b"".join(self._pieces))[-TAIL_BYTES:]
        self._pieces = [tail]
        self._size = len(tail)


class StreamMeter:
    """An event stream. What has whole events only, and no figures in them, is told by a few cheap tests.

    Everything else is looked at closely: the chunk framing is taken off, and an event that is not whole is kept
    until it is. With `takes_out` the client then gets whole events, framed anew, so that its side always stands
    between two chunks; without, it gets what came.
    """

    __slots__ = (
        "_aligned",
        "_dechunker",
        "_end_left",
        "_event_bytes",
        "_fresh",
        "_held",
        "_inside",
        "_open",
        "_parser",
        "_passed",
        "_seen",
        "_takes_out",
        "rechunks",
        "tokens",
        "told_all",
    )

    def __init__(self, head: ResponseHead, parser: ResponseParser, *, takes_out: bool) -> None:
        """`parser` follows the answer's framing. `head` is changed where the client has to get another one than
        the engine gave: a length."""
        self._dechunker = Dechunker() if head.framing == CHUNKED else None
        if takes_out and head.framing == LENGTH:
            head.framing = CHUNKED
        self._parser = parser
        self._takes_out = takes_out
        self.rechunks = takes_out and head.framing == CHUNKED
        """The client's side stands between chunks, wherever the engine's stands."""
        self._held = b""
        """The beginning of an event that is not whole yet."""
        self._open = b""
        """The beginning of a chunk that is not whole yet, with its framing; then nothing else is held."""
        self._end_left = 0
        """Nothing is held, and of the open chunk only so many bytes are to come: its line end."""
        self._inside = False
        """The beginning of the event that is coming has been passed on: it is not the one to be taken out."""
        self._fresh = self._dechunker is not None
        """Nothing has come yet. The first is looked at, to know how large an event is."""
        self._aligned = False
        """Nothing is held, and a chunk begins with what comes next, which is not the first."""
        self._passed = self._seen = self._event_bytes = 0
        """Bytes that only passed, events that were looked at, and the size of one of them."""
        self.tokens: Tokens | None = None
        self.told_all = False
        """The engine said its last word on usage: what comes after is only the end."""

    def found(self) -> Tokens | None:
        """What was found so far."""
        return self.tokens

    @property
    def events(self) -> int:
        """About how many there were. Those that only pass are not counted but weighed, which costs less."""
        return self._seen + self._passed // max(self._event_bytes or 256, 32)

    def feed(self, data: bytes, done: bool) -> bytes:
        """What goes on to the client. `done` with the last bytes."""
        # 0.2 microseconds. That no chunk is open is read past its property, which would cost half as much again.
        if self._aligned and data.rfind(_NAME) < 0 and not self._parser._left and self._parser.whole_events:
            self._passed += len(data)
            return data
        if self._aligned or self._fresh or self._open:
            before, self._open = self._open, b""
            out = self._from_chunk(before + data, done, len(before))
        elif self._end_left:
            out = self._behind_end(data, done)
        else:
            out = self._closely(data, done, untouched=False)
        return out if self._takes_out else data

    def give_up(self) -> bytes:
        """What is kept of an event that will never be whole, framed for the client."""
        held, self._held = self._held, b""
        if self._open and self._dechunker is not None:
            held, self._open = self._dechunker.feed(self._open), b""
        return b"%x\r\n%b\r\n" % (len(held), held) if held and self.rechunks else b""

    def _behind_end(self, data: bytes, done: bool) -> bytes:
        assert self._dechunker is not None
        size = min(self._end_left, len(data))
        self._dechunker.feed(data[:size])
        self._end_left -= size
        if self._end_left:
            return b""
        self._aligned = True
        return self._from_chunk(data[size:], done, -size) if len(data) > size else b""

    def _from_chunk(self, data: bytes, done: bool, before: int) -> bytes:
        """What begins with a chunk, while nothing is held: whole chunks of whole events pass as they came.

        So many bytes of it had come before; below 0, so many that came with it are left out.
        """
        if data == _LAST_CHUNK:
            self._fresh = False
            return data
        event = self._only_event(data)
        if event is not None:
            self._fresh = False
            self._aligned = True
            return b"" if self._to_be_taken_out(event) else data
        parser = self._parser
        if not parser.whole_events:
            return self._closely(data, done, untouched=True)
        # A read that comes late is full of chunks, and cuts the last of them.
        figures = data.find(_NAME)
        if figures >= 0 or done:
            end = whole_chunks(data, figures if figures >= 0 else len(data))
        elif not parser.chunk_left:
            end = len(data)
        else:
            end = before + parser.open_at if parser.open_at else 0
        passing, rest = data[:end], data[end:]
        if end:
            self._pass(passing)
        if not rest:
            self._aligned = True
            return passing
        if figures < 0 and not done and _only_begins(rest):
            self._aligned = False
            self._open = rest
            return passing
        return passing + self._closely(rest, done, untouched=True)

    def _pass(self, chunks: bytes) -> None:
        if not self._event_bytes:
            events = chunks.count(b"\n\n")
            self._seen += events
            self._event_bytes = len(chunks) // events
        else:
            self._passed += len(chunks)
        self._fresh = False

    def _closely(self, data: bytes, done: bool, *, untouched: bool) -> bytes:
        """`untouched`: the client's side stands where the engine's does, before a chunk."""
        self._fresh = False
        text = self._dechunker.feed(data) if self._dechunker is not None else data
        if self._held:
            text = self._held + text
        kept: list[bytes] = []
        start = 0
        for boundary in _BLANK.finditer(text):
            end = boundary.end()
            event = text[start:end]
            start = end
            if self._to_be_taken_out(event):
                untouched = False
            else:
                kept.append(event)
        rest = text[start:]
        if done:
            if rest and self._to_be_taken_out(rest):
                untouched = False
            else:
                kept.append(rest)
            rest = b""
        elif rest and (self._inside or (self._takes_out and _goes_on(rest))):
            # Not the line ends behind it: they may be half of what ends the event.
            passing = rest.rstrip(b"\r\n")
            kept.append(passing)
            rest = rest[len(passing) :]
            self._inside = True
        # Of a long event that only passes by, the end is enough: usage stands there.
        self._held = rest if len(rest) <= EVENT_BYTES_MAX else rest[-EVENT_BYTES_MAX:]
        if self._dechunker is not None:
            nothing_held, left = not self._held and not self._inside, self._parser.chunk_left
            self._aligned = nothing_held and not left
            self._end_left = left if nothing_held and left <= _CHUNK_END_BYTES else 0
        if not self._takes_out or (untouched and (self._aligned or done)):
            return data
        out = b"".join(kept)
        if self.rechunks:
            if out:
                out = b"%x\r\n%b\r\n" % (len(out), out)
            if done:
                out += _LAST_CHUNK
        return out

    def _only_event(self, data: bytes) -> bytes | None:
        """The event, where the data is one whole chunk with one whole event, as engines write them; else None."""
        if data[-4:] != _WHOLE_EVENT or self._parser.chunk_left:
            return None
        start = data.find(b"\r\n") + 2
        end = len(data) - 2
        # A chunk that says more or less than what is there, or has extensions, takes the other way.
        if data[: start - 2] != b"%x" % (end - start) or data.find(b"\n\n", start) != end - 2:
            return None
        event = data[start:end]
        return None if b"\r" in event else event

    def _to_be_taken_out(self, event: bytes) -> bool:
        self._seen += 1
        if self._inside:  # the rest of one that has begun already
            self._inside = False
            return False
        usages = event.count(_NAME)
        if not usages:
            self._event_bytes = self._event_bytes or len(event) + _CHUNK_BYTES
            return False
        if event.count(b'"usage":null') == usages:
            return False
        tokens, extra = read_event(_data(event))
        if tokens is None:
            return False
        self.tokens = tokens.after(self.tokens)
        self.told_all = self.told_all or extra
        return self._takes_out and extra


Meter = WholeMeter | StreamMeter


def _only_begins(chunk: bytes) -> bool:
    """True for the beginning of a chunk in which no event ends yet, and whose event may be the extra chunk."""
    return b"\n\n" not in chunk and b"\r\n\r\n" not in chunk and not _goes_on(chunk[chunk.find(b"\n") + 1 :])


def _goes_on(rest: bytes) -> bool:
    """True for the beginning of an event that cannot become the extra chunk."""
    return len(rest) > EVENT_BYTES_MAX or _NO_OBJECT.match(rest) is not None


def _data(event: bytes) -> bytes:
    """An event's data lines, joined as the HTML standard says."""
    if event.startswith(b"data: {") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]
    return b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
