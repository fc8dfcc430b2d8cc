"""Watch an answer pass and find its usage: a stream's by its events, any other's at its beginning or end.

A stream's extra chunk, which the client did not ask for, is taken out here. Everything else passes as it came.
"""

from __future__ import annotations

import re
from typing import Protocol

import msgspec

from llmgw.router.dechunk import Dechunker
from llmgw.router.response_parser import CHUNKED, LENGTH, ResponseHead
from llmgw.router.usage_figures import Tokens, find_tokens

# An event that holds the usage of a stream has some hundred bytes; one that is longer is not waited for.
EVENT_BYTES_MAX = 16 * 1024
# Usage stands at the end of an answer, with small things behind it, or at its beginning (llama.cpp's embeddings).
HEAD_BYTES = 4 * 1024
TAIL_BYTES = 16 * 1024
KEPT_BYTES_MAX = 64 * 1024

# A blank line, in all three ways to end a line that a stream may use (the HTML standard, section 9.2.6).
_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_CHUNK_FRAMING = re.compile(rb"\r\n[0-9a-fA-F]{1,15}[ \t]*(?:;[^\r\n]*)?\r\n")
_NO_OBJECT = re.compile(rb"data: ?[^ {\r\n]")
_LAST_CHUNK = b"0\r\n\r\n"
_NEVER = b"\0never"


class Framing(Protocol):
    """What is known of an answer's chunks: the engine's `ResponseParser`."""

    @property
    def chunk_left(self) -> int: ...


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


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
        "_framing",
        "_held",
        "_inside",
        "_mark",
        "_takes_out",
        "events",
        "rechunks",
        "tokens",
        "told_all",
    )

    def __init__(self, head: ResponseHead, framing: Framing, *, takes_out: bool) -> None:
        """`head` is changed where the client has to get another framing than the engine gave: a length."""
        chunked = head.framing == CHUNKED
        self._framing = framing
        self._takes_out = takes_out
        self._dechunker = Dechunker() if chunked else None
        self._mark = b"\n\n\r\n" if chunked else b"\n\n"
        if takes_out and head.framing == LENGTH:
            head.framing = CHUNKED
            self._mark = _NEVER
        self.rechunks = takes_out and head.framing == CHUNKED
        """The client's side stands between chunks, wherever the engine's stands."""
        self._held = b""
        """The beginning of an event that is not whole yet."""
        self._inside = False
        """The beginning of the event that is coming has been passed on: it is not the one to be taken out."""
        self._aligned = True
        """Nothing is held, and a chunk begins with what comes next."""
        self.tokens: Tokens | None = None
        self.told_all = False
        """The engine said its last word on usage: what comes after is only the end."""
        self.events = 0

    def feed(self, data: bytes, done: bool) -> bytes:
        """What goes on to the client. `done` with the last bytes."""
        if (
            self._aligned
            and data.endswith(self._mark)
            and (b'"usage"' not in data or data.count(b'"usage"') == data.count(b'"usage":null'))
            and not self._framing.chunk_left
        ):
            self.events += data.count(b"\n\n")
            return data
        return self._closely(data, done)

    def _closely(self, data: bytes, done: bool) -> bytes:
        text = self._dechunker.feed(data) if self._dechunker is not None else data
        if self._held:
            text = self._held + text
        kept: list[bytes] = []
        start = 0
        for boundary in _BLANK.finditer(text):
            end = boundary.end()
            event = text[start:end]
            start = end
            if not self._to_be_taken_out(event):
                kept.append(event)
        rest = text[start:]
        if done or (rest and (self._inside or (self._takes_out and _goes_on(rest)))):
            if not (done and rest and self._to_be_taken_out(rest)):
                kept.append(rest)
            self._inside = bool(rest)
            rest = b""
        # Of a long event that only passes by, the end is enough: usage stands there.
        self._held = rest if len(rest) <= EVENT_BYTES_MAX else rest[-EVENT_BYTES_MAX:]
        self._aligned = not self._held and not self._inside and not self._framing.chunk_left
        if not self._takes_out:
            return data
        out = b"".join(kept)
        if self.rechunks:
            if out:
                out = b"%x\r\n%b\r\n" % (len(out), out)
            if done:
                out += _LAST_CHUNK
        return out

    def give_up(self) -> bytes:
        """What is kept of an event that will never be whole, framed for the client."""
        held, self._held = self._held, b""
        return b"%x\r\n%b\r\n" % (len(held), held) if held and self.rechunks else b""

    def _to_be_taken_out(self, event: bytes) -> bool:
        self.events += 1
        if self._inside:  # the rest of one that has begun already
            self._inside = False
            return False
        if b'"usage"' not in event:
            return False
        tokens = find_tokens(event)
        if tokens is None:
            return False
        self.tokens = tokens.after(self.tokens)
        extra = _has_no_choices(event)
        self.told_all = self.told_all or extra
        return self._takes_out and extra


Meter = WholeMeter | StreamMeter


def _goes_on(rest: bytes) -> bool:
    """True for the beginning of an event that cannot become the extra chunk."""
    return len(rest) > EVENT_BYTES_MAX or _NO_OBJECT.match(rest) is not None


def _has_no_choices(event: bytes) -> bool:
    """True for a chunk with `"choices":[]`: with usage in it, it is the one that `include_usage` brings."""
    data = b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    try:
        return _decode_chunk(data).choices == []
    except msgspec.DecodeError:
        return False
