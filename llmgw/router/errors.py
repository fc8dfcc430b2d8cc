"""Answers that the gateway gives itself, in OpenAI's error shape: what happened, where, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import msgspec

from llmgw.messages.routes import ErrorType

NAMES_SHOWN_MAX = 50
REASONS: dict[int, bytes] = {status.value: status.phrase.encode() for status in HTTPStatus}

_encode = msgspec.json.Encoder().encode


class ApiError(Exception):
    """A request that the gateway answers with an error. `headers` are whole lines without their end."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: ErrorType = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Sequence[bytes] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = headers

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}`."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return _encode({"error": error})

    def sse_event(self) -> bytes:
        """The same as one server-sent event: what ends a stream that broke."""
        return b"data: " + self.body() + b"\n\n"


def render(
    status: int,
    body: bytes,
    *,
    keep_alive: bool,
    headers: Sequence[bytes] = (),
    more_headers: bytes = b"",
    head_only: bool = False,
    content_type: bytes = b"application/json",
) -> bytes:
    """A whole answer as bytes. `head_only` leaves the body out but not its length (HEAD).

    `headers` are lines without their ends, `more_headers` lines with them.
    """
    lines = [b"HTTP/1.1 %d %b" % (status, REASONS.get(status, b""))]
    if status != HTTPStatus.NO_CONTENT:
        lines += [b"content-type: " + content_type, b"content-length: %d" % len(body)]
    lines += headers
    if not keep_alive:
        lines.append(b"connection: close")
    return b"%b\r\n%b\r\n%b" % (b"\r\n".join(lines), more_headers, b"" if head_only else body)


def unknown_model(name: str, names: Sequence[str]) -> ApiError:
    """404 with the names that exist."""
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    if len(names) > NAMES_SHOWN_MAX:
        shown += f" and {len(names) - NAMES_SHOWN_MAX} more"
    exist = f"the models here are: {shown}" if names else "no model is configured here"
    return ApiError(
        404,
        f"The model {_short(name)} does not exist; {exist}.",
        code="model_not_found",
        param="model",
    )


def nothing_ready(model: str, reason: str, retry_after_s: int) -> ApiError:
    """503: the model exists and nothing can answer for it now."""
    why = reason.strip() or "no replica is ready"
    return ApiError(
        503,
        f"The model {_short(model)} cannot answer now: {why.rstrip('.')}. Try again in {retry_after_s} s.",
        type="service_unavailable",
        code="model_not_ready",
        headers=[b"retry-after: %d" % max(1, retry_after_s)],
    )


def too_large(limit_bytes: int) -> ApiError:
    """413, with the limit."""
    return ApiError(
        413,
        f"The request body exceeds the limit of {limit_bytes} bytes; send less, or raise router.body_bytes_max.",
        code="request_too_large",
    )


def busy(message: str, retry_after_s: int = 1) -> ApiError:
    """503 for a gateway that is full."""
    return ApiError(
        503,
        message,
        type="service_unavailable",
        code="overloaded",
        headers=[b"retry-after: %d" % retry_after_s],
    )


def engines_full(model: str) -> ApiError:
    """503: every engine of the model has as many requests as it may have at a time."""
    return busy(
        f"All engines of the model {_short(model)} have as many requests as they may have at a time; try again."
    )


def queue_full(model: str, retry_after_s: int) -> ApiError:
    """503: as many requests wait for the model as may, or this one's caller has its part of them."""
    return _overloaded(
        "queue_full", f"Too many requests wait for the model {_short(model)} already", retry_after_s
    )


def queue_too_long(model: str, expected_s: float, limit_s: float, retry_after_s: int) -> ApiError:
    """503: it would wait longer than it may, so that it need not begin to."""
    what = f"it would wait about {expected_s:.0f} s for an engine, and may wait {limit_s:.0f} s"
    return _overloaded(
        "queue_too_long", f"The request for the model {_short(model)} is not queued: {what}", retry_after_s
    )


def queued_too_long(model: str, waited_s: float, retry_after_s: int) -> ApiError:
    """503: it waited in vain."""
    what = f"No engine of the model {_short(model)} had room within {waited_s:.0f} s"
    return _overloaded("queue_timeout", what, retry_after_s)


def _overloaded(code: str, what: str, retry_after_s: int) -> ApiError:
    return ApiError(
        503,
        f"{what}. Nothing was sent to an engine; try again in {retry_after_s} s.",
        type="service_unavailable",
        code=code,
        headers=[b"retry-after: %d" % retry_after_s],
    )


def out_of_time(model: str, limit_s: float) -> ApiError:
    """504: the whole request took too long before anything of an answer had come."""
    return ApiError(
        504,
        f"No answer for the model {_short(model)} within its request_timeout of {limit_s:g} s. Nothing was "
        "delivered; ask for less, or have the limit raised.",
        type="server_error",
        code="request_timeout",
    )


def not_yet_known() -> ApiError:
    """503 for a gateway that has no route table yet."""
    return busy("This gateway has just started and does not know its models yet; try again.")


def engine_failed(model: str, what: str, *, status: int = 502) -> ApiError:
    """502 or 504: engines were asked and none answered."""
    return ApiError(
        status,
        f"No answer for the model {_short(model)}: {what}. Nothing was delivered; the request may be repeated.",
        type="server_error",
        code="first_byte_timeout" if status == 504 else "engine_failed",
    )


def stream_broke(model: str, what: str) -> ApiError:
    """What ends a stream whose engine died after the first byte."""
    return ApiError(
        502,
        f"The stream of the model {_short(model)} broke off: {what}. What came before is incomplete.",
        type="server_error",
        code="stream_broken",
    )


def _short(name: str) -> str:
    return repr(name if len(name) <= 128 else name[:128] + "…")
