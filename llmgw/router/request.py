"""A client's request head: what the gateway reads of it, what it refuses, and what goes on to the engine."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from random import getrandbits

import msgspec

from llmgw.router.caller import ANYBODY, Caller
from llmgw.router.errors import ApiError

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_PATH = re.compile(r"/[A-Za-z0-9._~:/@!$&'()*+,;=%-]*")

# Headers that concern one connection only (RFC 9110 section 7.6.1), or that the gateway sets itself. An answer is
# not compressed between engine and gateway: its tokens are counted, and a broken stream gets an event of ours.
_DROPPED = frozenset(
    (
        b"accept-encoding",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
        b"http2-settings",
        b"content-length",
    )
)
# What a client proves itself with is for the gateway, never for an engine.
_CREDENTIALS = frozenset(
    (b"authorization", b"proxy-authorization", b"proxy-authenticate", b"x-api-key", b"api-key", b"cookie")
)
# Those of them in which a key may come: OpenAI's, Anthropic's and Azure's clients each have their own.
_KEYS = frozenset((b"authorization", b"x-api-key", b"api-key"))
# What proxies say of the clients behind them: see `llmgw.router.forwarded`.
_FORWARDED = frozenset(
    (
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
        b"x-real-ip",
    )
)
_READ = frozenset(
    (
        b"access-control-request-headers",
        b"access-control-request-method",
        b"connection",
        b"content-encoding",
        b"content-type",
        b"expect",
        b"host",
        b"origin",
        b"transfer-encoding",
        b"x-queue-position",
        b"x-request-id",
        b"x-session-id",
    )
)
_SPECIAL = _DROPPED | _CREDENTIALS | _READ | _FORWARDED


OWN_ID = slice(len(b"x-request-id: "), -2)
"""Of a request's `own_line`: what it is called."""
Credentials = tuple[tuple[bytes, bytes], ...]
"""The headers that a key may come in, as they came: (lower-case name, value)."""


class Request(msgspec.Struct, eq=False):
    """One request. `lines` are the header lines for the engine, each with its end, and `own_line` is another one.

    `answer_headers` are lines, each with its end, that every answer to it carries besides. A msgspec struct since
    those are copied at once: most requests are copies of an earlier one of the same head.
    """

    method: bytes
    http10: bool
    keep_alive: bool
    body: bytes = b""
    content_length: int = 0
    content_type: bytes = b""
    expects_continue: bool = False
    """The client waits to be let send the body."""
    own_line: bytes = b""
    """The header line with its id, for the engine and for every answer."""
    credentials: Credentials = ()
    caller: Caller = ANYBODY
    refusal: ApiError | None = None
    """Why whoever sent it is not served; its body is not kept then."""
    answer_headers: bytes = b""
    answer_lines: bytes = b""
    """Header lines for an engine's answer, each with its end."""
    session: bytes = b""
    """What the client calls the conversation."""
    asks_place: bool = False
    """The client wants to know about its place in the queue."""
    origin: bytes = b""
    """The page that a browser sends it for, when that is of another site."""
    asked_method: bytes = b""
    """What such a page wants to know whether it may send; `asked_headers` too."""
    asked_headers: bytes = b""
    forwarded: tuple[tuple[bytes, bytes], ...] = ()
    """What a proxy says of its client, be it true or not."""
    path: str = ""
    query: bytes = b""
    lines: bytes = b""

    def unused(self) -> Request:
        """A copy of which nothing has happened yet."""
        unused: Request = self.__copy__()  # type: ignore[attr-defined]  # msgspec does not declare it
        unused.body = unused.answer_lines = unused.answer_headers = b""
        unused.expects_continue = False
        unused.caller = ANYBODY
        unused.refusal = None
        return unused

    def again(self, content_length: int) -> Request:
        """Another request with this very head but for the length, and with an id of its own. For one that is
        `unused`."""
        again: Request = self.__copy__()  # type: ignore[attr-defined]  # msgspec does not declare it
        again.content_length = content_length
        again.own_line = b"x-request-id: req-%024x\r\n" % getrandbits(96)  # as `_new_id`
        return again

    @property
    def request_id(self) -> bytes:
        """What it is called, towards the engine and in its answer."""
        return self.own_line[OWN_ID]

    @property
    def own_lines(self) -> bytes:
        """The header lines that every answer to it carries."""
        return self.own_line + self.answer_headers

    def upstream_target(self) -> bytes:
        """Path and query as they go to an engine. Raises ApiError (404) for a path that could climb or hide."""
        return _checked_path(self.path) + self.query


def read_request(
    method: bytes, target: bytes, version: str, headers: Iterable[tuple[bytes, bytes]], *, keep_alive: bool
) -> Request:
    """The request that a head makes. `headers` have lower-case names.

    Raises ApiError for what llhttp lets pass and we do not.
    """
    http10 = version == "1.0"
    request = Request(method, http10, keep_alive and not http10)
    lines: list[bytes] = []
    hosts = 0
    request_id = b""
    named: list[bytes] | None = None
    for name, value in headers:
        if name not in _SPECIAL:
            lines.append(b"%b: %b\r\n" % (name, value.strip(b" \t")))
        elif name in _KEYS:
            request.credentials += ((name, value),)
        elif name == b"content-length":
            request.content_length = int(value)  # llhttp let nothing but digits pass
        elif name == b"content-type":
            request.content_type = value
            lines.append(b"content-type: %b\r\n" % value.strip(b" \t"))
        elif name == b"host":
            hosts += 1
        elif name == b"x-request-id":
            request_id = value
        elif name == b"x-session-id":
            request.session = value.strip(b" \t")
            lines.append(b"x-session-id: %b\r\n" % request.session)
        elif name == b"connection":
            tokens = [token.strip().lower() for token in value.split(b",")]
            named = (named or []) + [token for token in tokens if token not in (b"close", b"keep-alive")]
        elif name == b"x-queue-position":
            request.asks_place = True
        elif name == b"transfer-encoding":
            _check_coding(value, http10)
        elif name == b"expect":
            request.expects_continue = _expects_continue(value) and not http10
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise ApiError(
                415, "Compressed request bodies are not read here; send the body as it is.", code="encoding"
            )
        elif name in _FORWARDED:
            request.forwarded += ((name, value.strip(b" \t")),)
        elif name == b"origin":
            request.origin = value.strip(b" \t")
        elif name == b"access-control-request-method":
            request.asked_method = value
        elif name == b"access-control-request-headers":
            request.asked_headers = value.strip(b" \t")
    if version not in ("1.0", "1.1"):
        raise ApiError(505, "Speak HTTP/1.1 to this gateway.", code="http_version")
    if hosts != 1 and not (http10 and not hosts):
        raise ApiError(400, f"A request needs one Host header; this one has {hosts}.", code="bad_request")
    if named:
        # A name that a client calls hop-by-hop goes no further, but it cannot take away what frames the body.
        doomed = tuple(token + b": " for token in named if token and token != b"content-type")
        lines = [line for line in lines if not (doomed and line.startswith(doomed))]
    if _REQUEST_ID.fullmatch(request_id) is None:
        request_id = _new_id()
    request.own_line = b"x-request-id: %b\r\n" % request_id
    request.lines = b"".join(lines)
    request.path, request.query = read_target(target)
    return request


def _check_coding(value: bytes, http10: bool) -> None:
    if value.strip(b" \t").lower() != b"chunked":
        raise ApiError(400, "The only transfer-encoding that is read here is chunked.", code="transfer_encoding")
    if http10:
        raise ApiError(400, "HTTP/1.0 has no transfer-encoding; send a Content-Length.", code="bad_request")


def _expects_continue(value: bytes) -> bool:
    if value.strip().lower() != b"100-continue":
        raise ApiError(417, "The only expectation that is met here is 100-continue.", code="expectation")
    return True


def read_target(target: bytes) -> tuple[str, bytes]:
    """The path that a request asks for, and its query with the mark before it."""
    if not target.startswith(b"/") and target != b"*":
        # Absolute form, as sent to proxies (RFC 9112 section 3.2.2): only the path matters here.
        _, scheme, rest = target.partition(b"://")
        target = b"/" + rest.partition(b"/")[2] if scheme else target
    path, mark, query = target.partition(b"?")
    return path.decode("latin-1"), mark + query


def _new_id() -> bytes:
    return b"req-%024x" % getrandbits(96)


@functools.lru_cache(maxsize=256)
def _checked_path(path: str) -> bytes:
    if (
        _PATH.fullmatch(path) is None
        or "%" in path
        or "//" in path
        or any(part in (".", "..") for part in path.split("/"))
    ):
        raise ApiError(
            404,
            f"The path {path[:200]!r} is not served here; paths are plain, like /v1/chat/completions.",
            type="not_found_error",
            code="not_found",
        )
    return path.encode("ascii")
