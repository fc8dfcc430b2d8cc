"""The head of an engine's answer: what is read of it, what is refused, and how its body is framed.

Pure. RFC 9112 is the source of every rule here.
"""

from __future__ import annotations

import re

import msgspec

from llmgw.router.known_heads import KnownHeads, split_length
from llmgw.router.limits import KNOWN_HEADS_MAX

LENGTH, CHUNKED, UNTIL_CLOSE, NONE = "length", "chunked", "until close", "none"

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = bytes(code for code in (*range(32), 127) if code not in b"\t\r\n")
LIMITS = b"x-ratelimit-"
"""How the names of headers begin that say what is left of a client's limits."""
_TIMEOUT = re.compile(rb"timeout\s*=\s*(\d{1,6})")


class BadResponse(Exception):
    """The engine does not speak HTTP/1.1; the message says how. Its connection is of no use any more."""


class ResponseHead(msgspec.Struct, eq=False):
    """Status and headers of an answer. Names are lower-case, framing headers are taken out.

    `like` is the head that this one equals but for its length; what is made of all that they have in common may
    be kept there, in `lines`. A msgspec struct since those are copied at once, and one is with every answer.
    """

    status: int
    keep_alive: bool
    headers: list[tuple[bytes, bytes]] = []
    framing: str = UNTIL_CLOSE
    length: int = 0
    keep_alive_s: int | None = None
    """Seconds that the engine says it keeps an idle connection."""
    is_event_stream: bool = False
    says_limits: bool = False
    """It has headers that speak of the client's limits (x-ratelimit-…)."""
    like: ResponseHead | None = None
    lines: bytes = b""
    before: bytes = b""
    """What stands before and after the digits of its length, where it has one."""
    after: bytes = b""

    def get(self, name: bytes) -> bytes:
        """The first value of a header, or nothing."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""


_known: KnownHeads[ResponseHead] = KnownHeads(KNOWN_HEADS_MAX)
"""Of all engines: most of an answer's head is the same each time, or each second."""


def read_head(raw: bytes) -> ResponseHead:
    """Whole lines, each with its end. Raises BadResponse."""
    split = split_length(raw)
    # Nothing begins with a dot: a whole head is never taken for one without its length.
    key, begin, length = (b"." + raw, 0, -1) if split is None else split
    known = _known.get(key)
    if known is None:
        known = _parse_head(raw[:-2])
        known.like = known  # and so of every copy
        if _known.keep(key, known) and known.framing == LENGTH and length >= 0:
            known.before, known.after = key[:begin], key[begin:] + b"\r\n"
        length = known.length
    again: ResponseHead = known.__copy__()  # type: ignore[attr-defined]  # msgspec does not declare it
    if length >= 0 and known.framing == LENGTH:
        again.length = length
    return again


def _parse_head(raw: bytes) -> ResponseHead:
    line_ends = raw.count(b"\r\n")
    if raw.count(b"\n") != line_ends or raw.count(b"\r") != line_ends:
        raise BadResponse("sent a head with bare line ends")
    if len(raw.translate(None, _CONTROL)) != len(raw):  # clients refuse it; quicker than a search
        raise BadResponse("sent a head with control characters")
    first, *lines = raw.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise BadResponse(f"began its answer with {first[:40]!r} and not with a status line of HTTP/1.1")
    head = ResponseHead(int(match[2]), keep_alive=match[1] == b"1")
    length: bytes | None = None
    coding: bytes | None = None
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or _HEADER_NAME.fullmatch(name) is None:
            raise BadResponse(f"sent a header line that is none: {line[:40]!r}")
        name = name.lower()
        value = value.strip(b" \t")
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18 or (length is not None and length != value):
                raise BadResponse(f"sent the content-length {value[:40]!r}")
            length = value
        elif name == b"transfer-encoding":
            if coding is not None or value.lower() != b"chunked":
                raise BadResponse(f"sent the transfer-encoding {value[:40]!r}")
            coding = value
        elif name == b"connection":
            if b"close" in value.lower():
                head.keep_alive = False
        elif name == b"keep-alive":
            timeout = _TIMEOUT.search(value)
            head.keep_alive_s = int(timeout[1]) if timeout else None
        elif name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise BadResponse(f"answered in the content-encoding {value[:40]!r}, which nobody asked for")
        else:
            head.headers.append((name, value))
    if head.status in (204, 304) or head.status < 200:
        head.framing = NONE
    elif coding is not None:
        # Both are a sign of trouble upstream of the engine: the chunks count, the connection is not kept.
        head.framing = CHUNKED
        head.keep_alive = head.keep_alive and length is None
    elif length is not None:
        head.framing = LENGTH
        head.length = int(length)
    else:
        head.keep_alive = False
    head.is_event_stream = head.get(b"content-type")[:17].lower() == b"text/event-stream"
    head.says_limits = any(name.startswith(LIMITS) for name, _ in head.headers)
    return head
