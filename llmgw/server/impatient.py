"""uvicorn's HTTP protocol with limits that it lacks: on how long a request's head may take, on its size, on how
long a client may take nothing of its answer, and on how many connections one address holds.

Whoever connects may do all of that before anything asks who it is, so that none of it may cost much.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llmgw.server.admin.auth import peer_key

HEADER_WAIT_S = 30.0
HEAD_BYTES_MAX = 64 * 1024
"""Beyond it no more is read: a head is refused once this has come without its end."""
LINGER_S = 5.0
"""A client that was answered before it had sent its whole request may finish sending within this."""
UNREAD_S = 30.0
"""A client that takes nothing at all of what waits for it within this is gone, or does as if."""

_SAID = f"the head of this request is larger than {HEAD_BYTES_MAX} bytes\n".encode()
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_SAID), _SAID)
)


def impatient(
    base: type[HttpToolsProtocol], *, connections_max: int, of_peer_max: int
) -> type[HttpToolsProtocol]:
    """`base`, which closes connections whose request's head does not arrive in `HEADER_WAIT_S` or is too large,
    or whose answer nobody takes for `UNREAD_S`.

    Beyond `connections_max`, and beyond `of_peer_max` of one address (one /64 for IPv6), a connection is closed
    as it comes: uvicorn keeps any number, and answers 503 on all of them, until there are no more files.

    uvicorn's own idle limit begins with an answer and ends with the next byte, so that clients which send one
    now and then would hold sockets for ever; and it keeps whatever a head consists of.
    """

    peers: Counter[str] = Counter()

    class Impatient(base):  # type: ignore[valid-type, misc]
        head_bytes = 0
        """What came since the last head was whole."""
        linger_timer: asyncio.TimerHandle | None = None
        head_timer: asyncio.TimerHandle | None = None
        unread_timer: asyncio.TimerHandle | None = None
        in_head = True
        peer = ""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.peer = peer_key(self.client[0] if self.client else "")
            peers[self.peer] += 1
            if peers[self.peer] > of_peer_max or len(self.connections) > connections_max:
                transport.abort()
                return
            # `pause_writing` comes as soon as the kernel takes no more. Of less than asyncio's 64 KiB nothing
            # would be told, and a connection that is closed with a byte left would stay for ever.
            # Over TLS asyncio compares otherwise (CPython, `asyncio/sslproto.py`): 0 would stop every answer.
            over_tls = transport.get_extra_info("sslcontext") is not None
            transport.set_write_buffer_limits(high=1 if over_tls else 0, low=0)
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self.head_timer, self.linger_timer, self.unread_timer):
                if timer is not None:
                    timer.cancel()
            peers[self.peer] -= 1
            if peers[self.peer] <= 0:
                del peers[self.peer]
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._await_reader(None)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.unread_timer is not None:
                self.unread_timer.cancel()
                self.unread_timer = None

        def data_received(self, data: bytes) -> None:
            self.head_bytes += len(data)
            super().data_received(data)
            if not self.in_head:
                self.head_bytes = 0
            elif self.head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.in_head = True
            if self.head_timer is None:
                self._await_head()

        def on_headers_complete(self) -> None:
            self.in_head = False
            if self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            if self.linger_timer is not None:
                self.linger_timer.cancel()
                self.linger_timer = None

        def on_response_complete(self) -> None:
            unread = self.cycle.more_body
            super().on_response_complete()
            if unread and not self.transport.is_closing():
                self.linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)

        def _await_head(self) -> None:
            self.head_timer = self.loop.call_later(HEADER_WAIT_S, self._close_silent)

        def _await_reader(self, left_before: int | None) -> None:
            left = self.transport.get_write_buffer_size()
            if left_before is not None and left >= left_before:
                self.transport.abort()
            else:
                self.unread_timer = self.loop.call_later(UNREAD_S, self._await_reader, left)

        def _close_silent(self) -> None:
            # While an answer is under way nothing of the next request may have been read.
            if self.cycle is not None and not self.cycle.response_complete:
                self._await_head()
            else:
                self.transport.abort()

    return Impatient
