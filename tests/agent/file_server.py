"""A server of files over HTTP that behaves well, or in the ways in which real ones do not."""

from __future__ import annotations

import http.server
import re
import ssl
import threading
from collections.abc import Callable
from typing import Any

SENT_AT_A_TIME = 64 * 1024


class FileServer:
    """Serves `content` at every path; a test changes what it does before or between requests.

    `cuts` are bytes after which the connection of the next request is cut, one a request; `gate` holds back what
    lies behind `held_after` bytes of a body until it is set.
    """

    def __init__(self, content: bytes = b"", *, context: ssl.SSLContext | None = None) -> None:
        self.content = content
        self.etag: str | None = '"one"'
        self.modified: str | None = None
        self.ranges = True
        self.says_length = True
        self.honours_if_range = True
        self.headers: dict[str, str] = {"content-type": "application/octet-stream"}
        self.statuses: list[tuple[int, dict[str, str]]] = []
        """Answers that come before the file does."""
        self.always: tuple[int, dict[str, str], bytes] | None = None
        self.redirects: dict[str, str] = {}
        self.cuts: list[int] = []
        self.held_after: int | None = None
        self.gate = threading.Event()
        self.before: Callable[[], None] = lambda: None
        """Called before each request is answered, when it stands in `asked` already."""
        self.asked: list[tuple[str, dict[str, str]]] = []
        """(path, headers) of every request."""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._serve(self)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "https" if context is not None else "http"
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def url(self, path: str = "/models/tiny.gguf", host: str = "127.0.0.1") -> str:
        return f"{self._scheme}://{host}:{self.port}{path}"

    def __enter__(self) -> FileServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        self.asked.append((request.path, {name.lower(): value for name, value in request.headers.items()}))
        self.before()
        path = request.path.partition("?")[0]
        if path in self.redirects:
            self._answer(request, 302, {"location": self.redirects[path]}, b"")
        elif self.statuses:
            status, headers = self.statuses.pop(0)
            self._answer(request, status, headers, b"")
        elif self.always is not None:
            self._answer(request, *self.always)
        else:
            self._send_file(request)

    def _answer(
        self, request: http.server.BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes
    ) -> None:
        request.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    def _send_file(self, request: http.server.BaseHTTPRequestHandler) -> None:
        content, start = self.content, 0
        wanted = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        same = request.headers.get("if-range") in (None, self.etag, self.modified) or not self.honours_if_range
        status = 200
        if wanted and self.ranges and same:
            status, start = 206, int(wanted[1])
            if start >= len(content):
                self._answer(request, 416, {"content-range": f"bytes */{len(content)}"}, b"")
                return
        request.send_response(status)
        if self.says_length:
            request.send_header("content-length", str(len(content) - start))
        if status == 206:
            request.send_header("content-range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        for name, value in (("etag", self.etag), ("last-modified", self.modified), *self.headers.items()):
            if value is not None:
                request.send_header(name, value)
        request.end_headers()
        cut = self.cuts.pop(0) if self.cuts else None
        body = content[start:]
        end = len(body) if cut is None else min(cut, len(body))
        sent = 0
        while sent < end:
            if self.held_after is not None and start + sent >= self.held_after:
                request.wfile.flush()
                self.gate.wait(30)
            until = min(end, sent + SENT_AT_A_TIME)
            if self.held_after is not None and not self.gate.is_set() and start + sent < self.held_after:
                until = min(until, self.held_after - start)
            request.wfile.write(body[sent:until])
            sent = until
        request.close_connection = True
