"""What a collector answers costs a router neither memory nor time, and leads its key nowhere else."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

requests = pytest.importorskip("requests", reason="tracing needs the extra: pip install 'llmgw[otel]'")

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, list[int]]]:
    """A collector, and the port of each request's client."""
    clients: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            clients.append(self.client_address[1])
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05}).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", clients
    finally:
        server.shutdown()
        server.server_close()


def head(handler: BaseHTTPRequestHandler, status: int, length: int, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("content-length", str(length))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()


def ask(url: str, times: int = 1) -> list[int]:
    from llmgw.router.tracing.collector import CollectorSession

    with CollectorSession() as session:
        return [session.post(url, data=b"spans", timeout=5.0).status_code for _ in range(times)]


def test_of_an_endless_answer_next_to_nothing_is_read() -> None:
    sent: list[int] = []
    ended = threading.Event()

    def endless(handler: BaseHTTPRequestHandler) -> None:
        head(handler, 200, 1 << 40)
        try:
            while sum(sent) < 256 << 20:
                sent.append(handler.wfile.write(b"x" * (1 << 20)))
        finally:
            ended.set()

    with answering(endless) as (url, _):
        assert ask(url) == [200]
        assert ended.wait(10)
    # What two sockets hold has been sent, and read by nobody.
    assert sum(sent) < 64 << 20


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for() -> None:
    def dripping(handler: BaseHTTPRequestHandler) -> None:
        head(handler, 200, 4000)
        for _ in range(100):
            handler.wfile.write(b"x")
            time.sleep(0.1)

    with answering(dripping) as (url, _):
        began = time.monotonic()
        assert ask(url) == [200]
        assert time.monotonic() - began < 5


def test_an_answer_that_leads_elsewhere_is_not_followed_and_is_no_success() -> None:
    with (
        answering(lambda handler: head(handler, 200, 0)) as (elsewhere, strangers),
        answering(lambda handler: head(handler, 307, 0, location=elsewhere)) as (url, _),
        pytest.raises(requests.RequestException, match="leads elsewhere"),
    ):
        ask(url)
    assert strangers == []


def test_the_connection_is_kept_where_the_answer_is_as_short_as_a_collectors() -> None:
    def partial_success(handler: BaseHTTPRequestHandler) -> None:
        head(handler, 200, 2)
        handler.wfile.write(b"{}")

    for answer in (partial_success, lambda handler: head(handler, 200, 0)):
        with answering(answer) as (url, clients):
            assert ask(url, 3) == [200] * 3
            assert len(set(clients)) == 1
