"""Sends spans to a collector by OTLP over HTTP, in batches, from a thread of its own. It is never waited for.

Bounded: spans that come while too many wait, and those that the collector does not take, are counted and dropped.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmgw import __version__
from llmgw.config.tracing import read_trace_headers
from llmgw.router.seldom import Seldom
from llmgw.router.tracing.spans import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

log = logging.getLogger(__name__)

QUEUE_MAX = 4096
BATCH_MAX = 512
SEND_EVERY_S = 1.0
SEND_TIMEOUT_S = 5.0
STOP_S = 2.0
"""How long a router that ends waits for its last spans to be taken."""


class SpanExport:
    """The thread and its queue. `take` is called by the event loop, everything else happens in the thread."""

    def __init__(self, endpoint: str, *, headers_file: str | None = None, ca: str | None = None) -> None:
        """Raises TracingError for a headers file that cannot be used, ImportError without the extra `otel`."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from llmgw.router.tracing.collector import CollectorSession

        # It says of each batch that nobody takes it, with the whole story; here that is said once a minute.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint,
            headers=read_trace_headers(Path(headers_file)) if headers_file is not None else {},
            certificate_file=ca,
            timeout=SEND_TIMEOUT_S,
            session=CollectorSession(),
        )
        self._endpoint = endpoint
        self._spans: deque[Span] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._seldom = Seldom(log)
        self.sent = self.dropped = 0
        """How many in all."""
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def take(self, span: Span) -> None:
        """Have it sent soon. Never blocks."""
        if len(self._spans) >= QUEUE_MAX:
            self.dropped += 1
            return
        self._spans.append(span)
        if len(self._spans) == BATCH_MAX:
            self._wake.set()

    def stop(self) -> None:
        """Send what is left, for at most `STOP_S`."""
        self._stopping = True
        self._wake.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self._wake.wait(SEND_EVERY_S)
            self._wake.clear()
            stopping = self._stopping
            while self._spans:
                self._send([self._spans.popleft() for _ in range(min(BATCH_MAX, len(self._spans)))])

    def _send(self, spans: Sequence[Span]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            taken = self._exporter.export([readable(span) for span in spans]) is SpanExportResult.SUCCESS
            why = "it does not answer, or refuses them"
        except Exception as error:  # whatever a library of others raises: a thread that ended would send no more
            taken, why = False, f"{type(error).__name__}: {error}"
        if taken:
            self.sent += len(spans)
            return
        self.dropped += len(spans)
        self._seldom.error(
            "the collector at %s takes no spans: %s; %d are lost so far", self._endpoint, why, self.dropped
        )


def readable(span: Span) -> ReadableSpan:
    """A span as OpenTelemetry has it.

    Names are those of its semantic conventions where there are some: HTTP's are stable, those of generative AI
    (`gen_ai.…`) are not yet. https://opentelemetry.io/docs/specs/semconv/
    """
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    outcome = span.outcome
    assert outcome is not None
    flags = TraceFlags(TraceFlags.SAMPLED)
    parent = SpanContext(span.trace_id, span.parent_id, True, flags) if span.parent_id is not None else None
    attributes: dict[str, str | int | float | bool | None] = {
        "http.request.method": span.method,
        "http.route": span.path,
        "url.path": span.path,
        "http.response.status_code": outcome.status,
        "error.type": str(outcome.status) if outcome.status >= 500 else None,
        "gen_ai.operation.name": _operation(span.path),
        "gen_ai.request.model": outcome.model,
        "gen_ai.request.stream": outcome.stream,
        "gen_ai.response.time_to_first_chunk": outcome.first_byte_s,
        "gen_ai.usage.input_tokens": outcome.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": outcome.cached_tokens,
        "gen_ai.usage.output_tokens": outcome.completion_tokens,
        "llmgw.request_id": span.request_id,
        "llmgw.endpoint": outcome.endpoint,
        "llmgw.key": outcome.key or None,
        "llmgw.queue_s": outcome.queued_s,
        "llmgw.connect_s": span.connect_s,
        "llmgw.retries": outcome.retries,
    }
    failed = outcome.status >= 500
    resource, scope = _origin()
    return ReadableSpan(
        name=f"{span.method} {span.path}",
        context=SpanContext(span.trace_id, span.span_id, False, flags),
        parent=parent,
        resource=resource,
        attributes={name: value for name, value in attributes.items() if value is not None},
        events=[
            Event(event.name, attributes=event.attributes, timestamp=_ns(span, event.at)) for event in span.events
        ],
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR, outcome.error) if failed else Status(StatusCode.UNSET),
        start_time=_ns(span, span.began),
        end_time=_ns(span, span.ended),
        instrumentation_scope=scope,
    )


def _ns(span: Span, at: float) -> int:
    return int((at + span.wall_less_monotonic) * 1e9)


@functools.cache
def _origin() -> tuple[Resource, InstrumentationScope]:
    """Who says so: this process."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    attributes = {
        "service.name": "llmgw-router",
        "service.version": __version__,
        "service.instance.id": f"{os.uname().nodename}:{os.getpid()}",
    }
    return Resource(attributes), InstrumentationScope("llmgw", __version__)


def _operation(path: str) -> str:
    """What the conventions call it; for what they have no word for, the end of the path."""
    last = path.rpartition("/")[2]
    return {"completions": "chat" if "/chat/" in path else "text_completion", "messages": "chat"}.get(last, last)
