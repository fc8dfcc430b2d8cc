"""The trace that a request belongs to: W3C Trace Context (level 1), read from its header lines and written there.

Pure: ids are arguments. https://www.w3.org/TR/trace-context-1/
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Versions after 00 may add fields behind a dash (section 3.2.2); ff is forbidden. Ids of zeros alone are invalid.
_TRACEPARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_PARENT_LINES = re.compile(rb"^traceparent: ([^\r\n]*)\r\n", re.MULTILINE)
_STATE_LINES = re.compile(rb"^tracestate: [^\r\n]*\r\n", re.MULTILINE)
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class Parent:
    """The span that a request came from. Ids are numbers of 128 and 64 bits."""

    trace_id: int
    span_id: int
    sampled: bool


def read_traceparent(value: bytes) -> Parent | None:
    """What a `traceparent` says; None for what is malformed, which is ignored."""
    found = _TRACEPARENT.fullmatch(value)
    if found is None or (found[1] == b"00" and found[5] is not None):
        return None
    return Parent(int(found[2], 16), int(found[3], 16), bool(int(found[4], 16) & _SAMPLED))


def write_traceparent(trace_id: int, span_id: int, sampled: bool) -> bytes:
    """The header's value. Of the flags only the one that level 1 knows is passed on (section 3.2.2.5.1)."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, _SAMPLED if sampled else 0)


def parent_of(lines: bytes) -> Parent | None:
    """The parent that header lines name. There is one `traceparent` at most, else none of them counts."""
    found = _PARENT_LINES.findall(lines)
    return read_traceparent(found[0]) if len(found) == 1 else None


def with_parent(lines: bytes, parent: Parent | None, traceparent: bytes) -> bytes:
    """The header lines with another `traceparent`. What a client's tracer added to its own (`tracestate`) goes on
    beside it, and is dropped where that could not be read (section 4.3)."""
    lines = _PARENT_LINES.sub(b"", lines)
    if parent is None:
        lines = _STATE_LINES.sub(b"", lines)
    return b"%btraceparent: %b\r\n" % (lines, traceparent)
