"""Where routers send traces: the settings, the file of secret headers, and whether anything is missing for it."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from llmgw.config.base import Model
from llmgw.config.base_urls import check_base_url
from llmgw.config.errors import KeyedError, SentenceError

HEADERS_BYTES_MAX = 16 * 1024
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}):[ \t]*([\x20-\x7e]{0,4096})")
_TRACES_PATH = "/v1/traces"
# What the extra `otel` of the package brings.
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


class TracingError(SentenceError):
    """Traces cannot be sent; the message is a sentence for the operator."""


def parse_trace_endpoint(text: str) -> str:
    """The whole URL that spans are posted to; a bare `http://host:4318` has OTLP's own path added.

    Raises ValueError with a sentence.
    """
    check_base_url(text, "http://collector:4318 or https://host/prefix/v1/traces", "secrets go into headers_file")
    return text if urlsplit(text).path.rstrip("/") else f"{text.rstrip('/')}{_TRACES_PATH}"


TraceEndpoint = Annotated[str, AfterValidator(parse_trace_endpoint)]


class Tracing(Model):
    """A span for each request, for an OpenTelemetry collector (docs/tracing.md). Needs the extra `otel`."""

    endpoint: TraceEndpoint | None = None
    """Where spans go by OTLP over HTTP: `http://collector:4318`. Default: nothing is traced."""
    headers_file: str | None = None
    """A file (0600) with headers for the collector, `name: value` a line, such as its key."""
    ca: str | None = None
    """The certificate (PEM) that an https collector's own leads back to. Default: the public authorities."""
    sample: float = Field(0.1, ge=0, le=1, allow_inf_nan=False)
    """The share of requests that is traced, of those whose client has not decided that already."""

    @model_validator(mode="after")
    def _endpoint_for_the_rest(self) -> Tracing:
        if self.endpoint is None and (self.headers_file or self.ca):
            raise KeyedError(
                "is of no use without endpoint; say where spans go, or leave it out",
                "headers_file" if self.headers_file else "ca",
            )
        return self


def tracing_problem(headers_file: str | None, ca: str | None) -> str | None:
    """Why spans cannot be sent from here, as a sentence; None when they can, for all that this machine knows."""
    if not all(map(_is_there, _NEEDED)):
        return "this llmgw has no OpenTelemetry; install it with its extra: pip install 'llmgw[otel]'"
    try:
        if headers_file is not None:
            read_trace_headers(Path(headers_file))
    except TracingError as error:
        return str(error)
    if ca is not None and not os.access(ca, os.R_OK):
        return f"the certificate {ca} cannot be read; correct router.tracing.ca"
    return None


def read_trace_headers(path: Path) -> dict[str, str]:
    """Header → value, of a file with one a line. Raises TracingError, whose text never holds a value."""
    try:
        # Whoever names a pipe or a device must not keep anybody waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise ValueError("it is not a file")
            content = file.read(HEADERS_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise TracingError(
            f"the headers file {path} cannot be read ({why}); make it readable or correct "
            "router.tracing.headers_file"
        ) from None
    if mode & 0o077:
        raise TracingError(f"the headers file {path} is open to others, and holds secrets; chmod 600 {path}")
    if len(content) > HEADERS_BYTES_MAX:
        raise TracingError(f"the headers file {path} is longer than {HEADERS_BYTES_MAX // 1024} KiB")
    headers: dict[str, str] = {}
    # What is not ASCII fits no header: it becomes a sign that no line may have.
    for number, line in enumerate(content.decode("ascii", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _HEADER.fullmatch(line.rstrip())
        if found is None:
            raise TracingError(f"{path} line {number} is no header; write name: value")
        headers[found[1].lower()] = found[2]
    return headers


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
