"""Errors as Anthropic's clients read them (platform.claude.com/docs/en/api/errors). Pure."""

from __future__ import annotations

import msgspec

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_encode = msgspec.json.Encoder().encode


def error_type(status: int) -> str:
    """The type that goes with a status; what Anthropic has no word for is the client's fault or the API's."""
    return _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")


def error_body(status: int, message: str, request_id: bytes) -> bytes:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`."""
    error = {"type": error_type(status), "message": message}
    return _encode({"type": "error", "error": error, "request_id": request_id.decode("latin-1") or None})


def error_event(status: int, message: str, request_id: bytes) -> bytes:
    """The same as the last event of a stream that broke."""
    return b"event: error\ndata: " + error_body(status, message, request_id) + b"\n\n"
