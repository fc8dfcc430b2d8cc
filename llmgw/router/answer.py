"""An engine's answer as the client gets it: its head, and the end of a stream whose engine gave up in the middle.

Pure: parsed heads in, bytes out.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmgw.router.errors import REASONS
from llmgw.router.queue import Waiter
from llmgw.router.request import Request
from llmgw.router.response_head import CHUNKED, LENGTH, LIMITS, NONE, ResponseHead

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
        # Which pages may read an answer is the gateway's decision, and engines' defaults allow all.
        b"access-control-allow-credentials",
        b"access-control-allow-headers",
        b"access-control-allow-methods",
        b"access-control-allow-origin",
        b"access-control-expose-headers",
        b"access-control-max-age",
    )
)


def answer_head(
    head: ResponseHead, request: Request, told: bytes, keep_alive: bool, added: Sequence[bytes] = ()
) -> bytes:
    """The head for the client, with what the engine said of the body and what the gateway says of itself.

    `told` is the line that names the endpoint, and `added` are further lines, without their ends.
    """
    limits, like = request.answer_lines, head.like
    if limits and head.says_limits:
        passed_on = _without_limits(head)
    elif like is not None and like.lines and head.headers is like.headers:
        passed_on = like.lines
    else:
        passed_on = _passed_on(head)
    if head.framing == CHUNKED:
        body = b"transfer-encoding: chunked\r\n"
    elif head.framing == LENGTH:
        body = b"content-length: %d\r\n" % head.length
    else:
        body = b""
    lines = b"".join([line + b"\r\n" for line in added]) if added else b""
    end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
    return b"".join((passed_on, body, request.own_line, request.answer_headers, told, lines, limits, end))


def _passed_on(head: ResponseHead) -> bytes:
    """Status line and headers that go on as they came; made once for all heads that have them in common."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, REASONS.get(head.status, b""))]
    for name, value in head.headers:
        if name not in _REPLACED:
            lines.append(b"%b: %b\r\n" % (name, value))
    if head.is_event_stream:
        lines.append(b"x-accel-buffering: no\r\n")
    joined = b"".join(lines)
    like = head.like
    if like is not None and head.headers is like.headers:
        like.lines = joined
    return joined


def _without_limits(head: ResponseHead) -> bytes:
    """The same for a client whose key has limits of its own, without what the engine says of its limits."""
    head.headers = [(name, value) for name, value in head.headers if not name.startswith(LIMITS)]
    return _passed_on(head)


def queue_lines(waiter: Waiter | None, now: float) -> tuple[bytes, bytes]:
    """What a client that asks is told: which one it was when it came, 1 for the next, and how long it waited.

    `waiter` is None for a request that did not wait.
    """
    if waiter is None:
        return b"x-queue-position: 0", b"x-queue-wait-ms: 0"
    waited_s = waiter.waited_s + (now - waiter.came_at if waiter.waits else 0.0)
    return b"x-queue-position: %d" % waiter.place, b"x-queue-wait-ms: %d" % (1000 * waited_s)


def broken_ending(head: ResponseHead, event: bytes, chunk_left: int) -> bytes | None:
    """What ends an answer that broke off, with `event` as its last words; None where nothing can be said any more
    and only the cut connection tells.

    `chunk_left` is what the open chunk still lacks, its CRLF included.
    """
    if not head.is_event_stream or head.framing in (LENGTH, NONE) or chunk_left > FILLED_BYTES_MAX:
        return None
    # Blank lines end an event that stopped in the middle: it is no JSON then, and fails loudly as well.
    event = b"\n\n" + event
    if head.framing != CHUNKED:
        return event
    filler = b"\n" * (chunk_left - 2) + b"\r\n"[2 - min(chunk_left, 2) :] if chunk_left else b""
    return filler + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)
