"""Watch an answer pass and find its usage: a stream's by its events, any other's at its beginning or end.

A stream's extra chunk, which the client did not ask for, is taken out here. Everything else passes as it came.
"""

from __future__ import annotations

import re

from llmgw.router.dechunk import Dechunker
from llmgw.router.response_parser import CHUNKED, LENGTH, ResponseHead, ResponseParser
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
_LAST_CHUNK = b"0\r\n\r\n"
_CHUNK_BYTES = 6
"""What the framing adds to an event of less than 256 bytes."""
_WHOLE_EVENT = b"\n\n\r\n"
"""How a chunk ends that ends with an event."""


class WholeMeter:
    """An answer that is no event stream: its beginning and its end are kept until it is over."""

    __slots__ = ("_chunked", "_head", "_pieces", "_size")

    events = 0
    rechunks = False
    told_all = True

    def __init__(self, head: ResponseHead) -> None:
        self._chunked = head.framing == CHUNKED
        self._head = b""
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, done: bool) -> bytes:
        """What goes on to the client: all of it, as it came."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > KEPT_BYTES_MAX:
            self._forget_the_middle()
        return data

    @property
    def tokens(self) -> Tokens | None:
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
        "_event_bytes",
        "_fresh",
        "_held",
        "_inside",
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
        self._inside = False
        """The beginning of the event that is coming has been passed on: it is not the one to be taken out."""
        self._fresh = self._dechunker is not None
        """Nothing has come yet. The first is looked at, to know how large an event is."""
        self._aligned = False
        """Nothing is held, and a chunk begins with what comes next."""
        self._passed = self._seen = self._event_bytes = 0
        """Bytes that only passed, events that were looked at, and the size of one of them."""
        self.tokens: Tokens | None = None
        self.told_all = False
        """The engine said its last word on usage: what comes after is only the end."""

    @property
    def events(self) -> int:
        """About how many there were. Those that only pass are not counted but weighed, which costs less."""
        return self._seen + self._passed // max(self._event_bytes or 256, 32)

    def feed(self, data: bytes, done: bool) -> bytes:
        """What goes on to the client. `done` with the last bytes."""
        # 0.25 microseconds. That no chunk is open is read past its property, which would cost half as much again.
        # Where each chunk ends with an event, no framing stands within a word.
        if (
            self._aligned
            and data[-4:] == _WHOLE_EVENT
            and data.rfind(b'"usage"') < 0
            and not self._parser._left
            and self._parser.whole_events
        ):
            self._passed += len(data)
            return data
        return self._closely(data, done)

    def give_up(self) -> bytes:
        """What is kept of an event that will never be whole, framed for the client."""
        held, self._held = self._held, b""
        return b"%x\r\n%b\r\n" % (len(held), held) if held and self.rechunks else b""

    def _closely(self, data: bytes, done: bool) -> bytes:
        untouched = self._aligned or self._fresh
        if untouched:
            self._fresh = False
            if data == _LAST_CHUNK:
                return data
            event = self._only_event(data)
            if event is not None:
                self._aligned = True
                return b"" if self._to_be_taken_out(event) else data
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
            self._aligned = not self._held and not self._inside and not self._parser.chunk_left
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
        usages = event.count(b'"usage"')
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


def _goes_on(rest: bytes) -> bool:
    """True for the beginning of an event that cannot become the extra chunk."""
    return len(rest) > EVENT_BYTES_MAX or _NO_OBJECT.match(rest) is not None


def _data(event: bytes) -> bytes:
    """An event's data lines, joined as the HTML standard says."""
    if event.startswith(b"data: {") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]
    return b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
