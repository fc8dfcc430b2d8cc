"""The border of the admin API: names, numbers and bodies are checked here, before the backend sees them."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from llmgw.messages.agent import NODE_ID_PATTERN
from llmgw.server.admin.backend import AdminError

BODY_BYTES_MAX = 64 * 1024
CATALOG_BYTES_MAX = 4 * 1024 * 1024
BODY_WAIT_S = 10.0
NOTE_CHARS_MAX = 200

_NODE = re.compile(NODE_ID_PATTERN)
_REPLICA = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,199}$")
_TOKEN_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")
_STREAM = re.compile(r"^[a-z0-9][a-z0-9_-]{0,62}$")
_SECONDS_MAX = 2**40
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?Z?)?")
# `model/profile` is the longest of them: 200 + 1 + 63.
_NAME_CHARS_MAX = 264

Body = TypeVar("Body")


def bad_request(message: str) -> AdminError:
    """A 400 with a sentence."""
    return AdminError(400, "bad-request", message)


def node_id(request: Request) -> str:
    """The node of the path. Raises AdminError(400)."""
    return as_node_id(request.path_params["node"])


def as_node_id(value: str) -> str:
    """A node id, checked. Raises AdminError(400)."""
    return _matching(_NODE, value, "node id", "lower-case letters, digits, '-' and '.', at most 63")


def replica_id(request: Request) -> str:
    """The replica of the path. Raises AdminError(400)."""
    return _matching(
        _REPLICA, request.path_params["replica"], "replica id", "letters, digits and any of ._:@+- , at most 200"
    )


def token_name(value: str) -> str:
    """A token's name, checked. Raises AdminError(400)."""
    return _matching(
        _TOKEN_NAME,
        value,
        "token name",
        "letters, digits, '.', '_', '@' and '-', starting with one of the first two",
    )


def key_name(value: str) -> str:
    """A key's name, or what the key begins with, checked. Raises AdminError(400)."""
    return _matching(
        _TOKEN_NAME,
        value,
        "key name",
        "letters, digits, '.', '_', '@' and '-', starting with one of the first two, at most 64",
    )


def stream_name(value: str) -> str:
    """`engine` or a sidecar's name. Raises AdminError(400)."""
    return _matching(_STREAM, value, "stream", "engine, or a sidecar's name")


def plain_name(value: str, what: str) -> str:
    """A model, profile or subject: anything printable, bounded in length. Raises AdminError(400)."""
    if not value or len(value) > _NAME_CHARS_MAX or not value.isprintable():
        raise bad_request(f"{what} must be 1 to {_NAME_CHARS_MAX} printable characters")
    return value


def note(value: str) -> str:
    """What somebody says of a change: one printable line, or nothing. Raises AdminError(400)."""
    if len(value) > NOTE_CHARS_MAX or not (value.isprintable() or not value):
        raise bad_request(f"note must be at most {NOTE_CHARS_MAX} printable characters")
    return value


def only_parameters(request: Request, *names: str) -> None:
    """Refuse a parameter that the route does not know, or one given twice: a typo must not widen a question."""
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in names:
            takes = f"it takes {', '.join(names)}" if names else "it takes none"
            raise bad_request(f"{request.url.path} knows no parameter {name!r}; {takes}")
        if name in seen:
            raise bad_request(f"parameter {name!r} is given twice")
        seen.add(name)


def whole_number(request: Request, name: str, default: int | None, low: int, high: int) -> int | None:
    """A number of the query, in its range. Raises AdminError(400)."""
    text = request.query_params.get(name)
    if text is None:
        return default
    # int() reads signs, spaces, underscores and other scripts' digits; a URL needs none of them.
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not low <= int(text) <= high:
        raise bad_request(f"{name} must be a whole number from {low} to {high}, not {text[:40]!r}")
    return int(text)


def moment(text: str, name: str) -> int:
    """Seconds since 1970 of a parameter that says them, or a date or time of UTC. Raises AdminError(400)."""
    if text.isascii() and text.isdigit() and len(text) < 16 and int(text) < _SECONDS_MAX:
        return int(text)
    if _DATE.fullmatch(text):
        try:
            return int(datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC).timestamp())
        except (ValueError, OverflowError):
            pass
    raise bad_request(
        f"{name} must be a time like 2026-11-29 or 2026-11-29T13:00 (UTC), or seconds since 1970; "
        f"it is {text[:40]!r}"
    )


async def no_body(request: Request) -> None:
    """Refuse a body on a route that takes none. Raises AdminError(400 or 413)."""
    if (await read_body(request)).strip() not in (b"", b"{}"):
        raise bad_request(f"{request.url.path} takes no body")


async def body_as(
    request: Request, shape: type[Body], *, empty: Body | None = None, bytes_max: int = BODY_BYTES_MAX
) -> Body:
    """The JSON body as `shape`; `empty` stands for an empty one. Raises AdminError(400, 408 or 413)."""
    raw = await read_body(request, bytes_max)
    if not raw.strip() and empty is not None:
        return empty
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        raise bad_request(f"the body has not the shape of {shape.__name__}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None


async def read_body(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The whole body. Raises AdminError(400, 408 or 413)."""
    too_large = AdminError(413, "too-large", f"the body is larger than {bytes_max} bytes")
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:20]) > bytes_max:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WAIT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise too_large
    except TimeoutError:
        raise AdminError(408, "slow-body", f"the body did not arrive within {BODY_WAIT_S:g} s") from None
    except ClientDisconnect:
        raise AdminError(
            400, "client-left", "the client closed the connection before its body was read"
        ) from None
    return bytes(body)


def _matching(pattern: re.Pattern[str], value: str, what: str, rule: str) -> str:
    # `$` also matches before a final newline; fullmatch does not.
    if not pattern.fullmatch(value):
        raise bad_request(f"{value[:80]!r} is not a {what}: {rule}")
    return value
