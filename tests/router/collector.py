"""A collector of traces: takes OTLP over HTTP and keeps the spans, or does not answer as a test likes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="tracing needs the extra: pip install 'llmgw[otel]'",
)


class Collector:
    """Its spans as plain values: `attributes` and each event's are dicts."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        """Path and headers of each request."""
        self.resources: list[dict[str, Any]] = []
        self.status = 200
        self.answers = threading.Event()
        """Cleared: requests are taken and never answered."""
        self.answers.set()
        self.url = ""

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.requests.append((path, headers))
        message = trace_service.ExportTraceServiceRequest.FromString(body)
        for of_resource in message.resource_spans:
            self.resources.append(values(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                self.spans += [plain(span) for span in of_scope.spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector at `url`, until the block ends."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.answers.wait()
            if collector.status == 200:
                collector.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05})
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        collector.answers.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def plain(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "kind": span.kind,
        "trace": span.trace_id.hex(),
        "span": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "began": span.start_time_unix_nano / 1e9,
        "took_s": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        "status": (span.status.code, span.status.message),
        "attributes": values(span.attributes),
        "events": [(event.name, event.time_unix_nano / 1e9, values(event.attributes)) for event in span.events],
    }


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
