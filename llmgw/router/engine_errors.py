"""Errors of engines, in the many shapes that they have, made readable for clients of the API that was asked.

Seen of the real ones: `{"error": {…}}` (vLLM, llama.cpp), the same without the envelope (SGLang), a bare string
in it (vLLM, SGLang, for a wrong key), FastAPI's `{"detail": …}` (both, for paths and fields), text (proxies).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from llmgw.router.errors import REASONS, ApiError
from llmgw.router.response_head import NONE, ResponseHead

ERROR_BYTES_MAX = 64 * 1024
"""An error is small; what is larger goes on as it came."""
_TEXT_CHARS_MAX = 500
_UNAUTHORIZED = 401
# FastAPI's and llama.cpp's whole words for it, which would leave a client to wonder what is not found.
_NO_SUCH_PATH = frozenset(("Not Found", "File Not Found", "Method Not Allowed"))
_OWN_KEY_REFUSED = (
    "The engine refused the key that this gateway has for it; whoever runs it has to correct that: "
)
# SGLang's validation errors name files and lines of its own installation.
_TRACE = re.compile(r'\s*\n\s*File ".*', re.DOTALL)
_encode = msgspec.json.Encoder().encode


class EngineError:
    """What an engine said went wrong. `whole`: it was said in OpenAI's shape already."""

    __slots__ = ("code", "message", "param", "type", "whole")

    def __init__(
        self, message: str, type: str = "", param: Any = None, code: Any = None, *, whole: bool = False
    ) -> None:
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.whole = whole


def read_error(body: bytes, status: int, path: str) -> EngineError:
    """Find what the body of an answer with such a status says, whatever its shape. `path` is what was asked."""
    error = _read(body, status)
    if error.message in _NO_SUCH_PATH:
        error.message = (
            f"The engine of this model does not serve {path[:200]} ({error.message}); GET /v1/models says what "
            "models are for."
        )
        error.whole = False
    if status == _UNAUTHORIZED:
        error.message = _OWN_KEY_REFUSED + error.message
        error.whole = False
    return error


def _read(body: bytes, status: int) -> EngineError:
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return EngineError(_text(body) or _bare(status))
    if not isinstance(told, dict):
        return EngineError(_told(told) or _bare(status))
    envelope = told.get("error")
    inner = envelope if isinstance(envelope, dict) else told
    message = inner.get("message")
    if not isinstance(message, str) or not message:
        message = _told(envelope) or _told(told.get("detail")) or _told(told) or _bare(status)
        return EngineError(message, _string(inner.get("type")), inner.get("param"), inner.get("code"))
    clean = _TRACE.sub("", message)
    return EngineError(
        clean,
        _string(inner.get("type")),
        inner.get("param"),
        inner.get("code"),
        whole=inner is envelope and clean == message,
    )


def openai_body(error: EngineError, status: int) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`."""
    kind = error.type or ("server_error" if status >= 500 else "invalid_request_error")
    return _encode(
        {
            "error": {
                "message": error.message,
                "type": kind,
                "param": error.param,
                "code": error.code if error.code is not None else status,
            }
        }
    )


class EvenErrors:
    """Brings an engine's error into OpenAI's shape. One that has it goes on byte for byte."""

    __slots__ = ("_held", "_passes", "_path", "_said", "_status")

    def __init__(self, said: int, status: int, path: str) -> None:
        """`said` is the engine's status, and `status` the client's."""
        self._path = path
        self._said = said
        self._status = status
        self._held = b""
        self._passes = False

    def feed(self, payload: bytes) -> bytes:
        """Nothing until the end, unless it is too large to be an error."""
        if self._passes:
            return payload
        self._held += payload
        if len(self._held) <= ERROR_BYTES_MAX:
            return b""
        self._passes = True
        held, self._held = self._held, b""
        return held

    def end(self) -> bytes:
        """The body for the client."""
        if self._passes:
            return b""
        error = read_error(self._held, self._said, self._path)
        return self._held if error.whole else openai_body(error, self._status)

    def broken(self, error: ApiError) -> None:
        """Nothing can be said in the middle of a body of an unknown kind."""


def even_errors(head: ResponseHead, path: str) -> EvenErrors | None:
    """The filter for an error's answer; None where it must not be read. The head is changed to what comes out."""
    if head.framing == NONE or head.length > ERROR_BYTES_MAX or head.is_event_stream:
        return None
    return EvenErrors(head.status, told_status(head), path)


def told_status(head: ResponseHead) -> int:
    """The status that the client gets for an engine's error. The head is changed to it, and to JSON.

    No client's key ever reaches an engine: a 401 is about the gateway's own, and would have the client doubt its.
    """
    say_json(head)
    if head.status == _UNAUTHORIZED:
        head.status = 502
        head.headers = [(name, value) for name, value in head.headers if name != b"www-authenticate"]
    return head.status


def say_json(head: ResponseHead) -> None:
    """The body that the head announces is JSON now."""
    if b"json" in head.get(b"content-type"):
        return
    head.headers = [(name, value) for name, value in head.headers if name not in (b"content-type", b"etag")]
    head.headers.append((b"content-type", b"application/json"))
    head.is_event_stream = False


def _bare(status: int) -> str:
    reason = REASONS.get(status, b"").decode()
    return f"The engine answered {status}{f' ({reason})' if reason else ''} and did not say why."


def _text(body: bytes) -> str:
    """Plain text as it is; of a page nothing but that there was one."""
    text = body.decode("utf-8", "replace").strip()
    if text.startswith("<"):
        return "The engine, or a proxy before it, answered with a page instead of an error in JSON."
    return text[:_TEXT_CHARS_MAX]


def _told(value: Any) -> str:
    """A message that is no string where it should be: a list of FastAPI's findings, or anything else."""
    if isinstance(value, str):
        return value[:_TEXT_CHARS_MAX]
    if isinstance(value, list) and value and all(isinstance(each, dict) and "msg" in each for each in value):
        found = []
        for each in value[:5]:
            where = each.get("loc")
            path = ".".join(str(part) for part in where) if isinstance(where, list) else ""
            found.append(f"{path}: {each['msg']}" if path else str(each["msg"]))
        return "; ".join(found)[:_TEXT_CHARS_MAX]
    return _encode(value).decode()[:_TEXT_CHARS_MAX] if value else ""


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
