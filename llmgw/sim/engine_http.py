"""A small HTTP/1.1 server for the simulated engine: asyncio and httptools, nothing that costs time to import.

It knows bytes and connections, not models. A client that leaves cancels the handler of its request at once.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httptools

BODY_BYTES_MAX = 64 * 1024 * 1024
HEADER_BYTES_MAX = 64 * 1024
# Requests of one connection that wait behind the one that runs (pipelining); more are not read.
PIPELINED_MAX = 4
RESET_AFTER_S = 0.02
KEEP_ALIVE_S = 5.0  # as uvicorn's, and so vLLM's

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass
class Request:
    """One request, whole. Header names are lower case; `path` is without the query."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True
    chunked_ok: bool = True
    """False for HTTP/1.0 clients, whose streams end with the connection."""
    refused: tuple[int, str] | None = None
    """Set instead of a body when the request was too large: (status, sentence)."""


class Exchange:
    """One request and its answer: either one `respond`, or `start_stream`, some `write`, `end_stream`."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self.request = request
        self.status: int | None = None
        self.whole = False
        """True once the answer was sent to its end, for all that this process knows."""
        self._connection = connection

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send a whole answer."""
        self.status = status
        lines = [f"content-length: {len(body)}"]
        if body:
            lines.append(f"content-type: {content_type}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._connection.send(self._head(status, lines) + (b"" if self.request.method == "HEAD" else body))
        self.whole = True

    def start_stream(self, content_type: str) -> None:
        """Send the head of an answer whose body follows in pieces."""
        self.status = 200
        lines = [f"content-type: {content_type}"]
        if self.request.chunked_ok:
            lines.append("transfer-encoding: chunked")
        else:
            self.request.keep_alive = False
        self._connection.send(self._head(200, lines))

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; waits while the client does not read."""
        if self.request.chunked_ok:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.send(data)
        await self._connection.writable.wait()

    def end_stream(self, *, whole: bool = True) -> None:
        """Say that the body is complete. `whole` is False when it ended with an error."""
        if self.request.chunked_ok:
            self._connection.send(b"0\r\n\r\n")
        self.whole = whole

    async def reset(self) -> None:
        """Break off, with a reset: in the middle of the head, unless that was sent long ago."""
        if self.status is None:
            self._connection.send(b"HTTP/1.1 200 OK\r\nserver: llmgw-sim\r\ncontent-ty")
            await asyncio.sleep(RESET_AFTER_S)  # for the client to read it first
        self._connection.reset()

    def _head(self, status: int, lines: list[str]) -> bytes:
        if not self._connection.may_stay_open(self.request):
            lines.append("connection: close")
        head = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}", "server: llmgw-sim", *lines, "", ""]
        return "\r\n".join(head).encode("latin-1")


Handler = Callable[[Exchange], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One client. Requests are parsed as they come and answered one after the other."""

    def __init__(self, server: HttpServer) -> None:
        self.writable = asyncio.Event()
        self.writable.set()
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self._url = b""
        self._header_bytes = 0
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        self._transport = None
        self._waiting.clear()
        self._stop_idle_timer()
        self.writable.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._stop_idle_timer()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse_bytes("this server speaks HTTP/1.1 only")
        except httptools.HttpParserError:
            self._refuse_bytes("these bytes are not an HTTP/1.1 request")

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._request = Request()
        self._url = b""
        self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_header_bytes(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header_bytes(len(name) + len(value))
        if self._request.refused is None:
            self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        request = self._request
        request.method = self._parser.get_method().decode("latin-1")
        request.path = self._url.partition(b"?")[0].decode("latin-1")
        request.keep_alive = self._parser.should_keep_alive()
        request.chunked_ok = self._parser.get_http_version() == "1.1"
        if request.headers.get("expect", "").lower() == "100-continue" and request.refused is None:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        request = self._request
        if request.refused is None and len(request.body) + len(body) > BODY_BYTES_MAX:
            request.refused = (413, f"the body is larger than {BODY_BYTES_MAX} bytes")
            request.body.clear()
            request.keep_alive = False
        if request.refused is None:
            request.body += body

    def on_message_complete(self) -> None:
        self._waiting.append(self._request)
        if self._task is None:
            self._next()
        elif len(self._waiting) >= PIPELINED_MAX and self._transport is not None:
            self._transport.pause_reading()

    # What the rest of this file calls.

    def send(self, data: bytes) -> None:
        """Hand bytes to the transport; dropped when the client has left."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def may_stay_open(self, request: Request) -> bool:
        """Whether another request may follow on this connection."""
        return request.keep_alive and not self._server.closing

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None

    def close(self) -> None:
        """Close after what was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """End at once with a TCP reset, as for a process that died with bytes unread."""
        transport = self._transport
        if transport is not None:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()

    def _next(self) -> None:
        if self._transport is None:
            return
        if not self._waiting:
            self._transport.resume_reading()
            self._idle = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self.close)
            return
        request = self._waiting.popleft()
        self._task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        exchange = Exchange(self, request)
        try:
            await self._server.handler(exchange)
        finally:
            self._task = None
            if self.may_stay_open(request):
                self._next()
            else:
                self.close()

    def _refuse_bytes(self, sentence: str) -> None:
        if self._task is None:
            body = sentence.encode()
            self.send(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body
            )
        self.close()

    def _count_header_bytes(self, count: int) -> None:
        self._header_bytes += count
        if self._header_bytes > HEADER_BYTES_MAX and self._request.refused is None:
            self._request.refused = (431, f"the head is larger than {HEADER_BYTES_MAX} bytes")
            self._request.headers.clear()
            self._request.keep_alive = False

    def _stop_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


class HttpServer:
    """Listens on one socket and calls `handler` for each request."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections: set[Connection] = set()
        self.closing = False
        self._server: asyncio.Server | None = None
        self._gone = asyncio.Event()

    async def listen(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket. Raises OSError when another process listens there."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), sock=sock, backlog=512
        )

    def stop_accepting(self) -> None:
        """Close the listening socket and idle connections; running answers go on, and their connections end."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            if not connection.busy:
                connection.close()

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until every connection is gone, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.connections:
                    self._gone.clear()
                    await self._gone.wait()
        except TimeoutError:
            pass

    def forget(self, connection: Connection) -> None:
        """Called by a connection that is over."""
        self.connections.discard(connection)
        self._gone.set()


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket bound to `host`:`port` that does not listen yet, so that dialling it is refused.

    Raises OSError when the name does not resolve or the address is taken.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
