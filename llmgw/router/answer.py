"""An engine's answer as the client gets it: its head, and the end of a stream whose engine gave up in the middle.

Pure: parsed heads in, bytes out.
"""

from __future__ import annotations

from llmgw.router.errors import REASONS
from llmgw.router.request import Request
from llmgw.router.response_parser import CHUNKED, LENGTH, NONE, ResponseHead

# An open chunk is filled up with line ends to send an error event behind it; beyond this the client is cut.
FILLED_BYTES_MAX = 64 * 1024


# Said by the gateway itself, or about the engine's connection only.
_REPLACED = frozenset(
    (
        b"x-request-id",
        b"x-llmgw-replica",
        b"x-accel-buffering",
        b"proxy-authenticate",
        b"upgrade",
        b"trailer",
        b"proxy-connection",
    )
)


def answer_head(head: ResponseHead, request: Request, endpoint_id: str, *, keep_alive: bool) -> bytes:
    """The head for the client, with what the engine said of the body and what the gateway says of itself."""
    lines = [_passed_on(head)]
    if head.framing == CHUNKED:
        if not request.http10:
            lines.append(b"transfer-encoding: chunked\r\n")
    elif head.framing == LENGTH:
        lines.append(b"content-length: %d\r\n" % head.length)
    lines.append(b"x-request-id: %b\r\nx-llmgw-replica: %b\r\n" % (request.request_id, endpoint_id.encode()))
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def _passed_on(head: ResponseHead) -> bytes:
    """Status line and headers that go on as they came; made once for all heads that have them in common."""
    like = head.like
    common = head.headers is like.headers
    if common and like.lines:
        return like.lines
    lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, REASONS.get(head.status, b""))]
    for name, value in head.headers:
        if name not in _REPLACED:
            lines.append(b"%b: %b\r\n" % (name, value))
    if _is_event_stream(head):
        lines.append(b"x-accel-buffering: no\r\n")
    joined = b"".join(lines)
    if common:
        like.lines = joined
    return joined


def broken_ending(head: ResponseHead, event: bytes, chunk_left: int, *, chunked: bool) -> bytes | None:
    """What ends an answer that broke off, with `event` as its last words; None where nothing can be said any more
    and only the cut connection tells.

    `chunk_left` is what the open chunk still lacks, its CRLF included; `chunked` is False for a client that gets
    the bare body.
    """
    if not _is_event_stream(head) or head.framing in (LENGTH, NONE) or chunk_left > FILLED_BYTES_MAX:
        return None
    # Blank lines end an event that stopped in the middle: it is no JSON then, and fails loudly as well.
    event = b"\n\n" + event
    if head.framing != CHUNKED or not chunked:
        return event
    filler = b"\n" * (chunk_left - 2) + b"\r\n"[2 - min(chunk_left, 2) :] if chunk_left else b""
    return filler + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)


def _is_event_stream(head: ResponseHead) -> bool:
    return head.get(b"content-type")[:17].lower() == b"text/event-stream"
