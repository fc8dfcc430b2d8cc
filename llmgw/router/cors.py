"""Which pages of other origins may read the gateway's answers: the Fetch standard's CORS protocol.

Credentials are not part of it: clients of the API send their key in a header, which pages do by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmgw.router.request import Request

PREFLIGHT_AGE_S = 600
_NAMES = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, \t-]{1,4096}")
_EXPOSED = (
    b"access-control-expose-headers: x-request-id, request-id, x-llmgw-replica, retry-after, x-queue-position, "
    b"x-queue-wait-ms, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens\r\n"
)


class Cors:
    """The origins that an operator allows."""

    def __init__(self, origins: Sequence[str]) -> None:
        """`origins` are as `llmgw.config.origins.parse_origin` gives them; `*` is every one."""
        self._everyone = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def headers(self, origin: bytes) -> bytes:
        """Header lines, each with its end, for an answer to a page of that origin, allowed or not."""
        if self._everyone:
            return b"access-control-allow-origin: *\r\n" + _EXPOSED
        if origin in self._origins:
            return b"access-control-allow-origin: %b\r\n%bvary: Origin\r\n" % (origin, _EXPOSED)
        return b"vary: Origin\r\n"


def preflight_headers(request: Request, methods: Sequence[str]) -> list[bytes]:
    """Header lines without their ends that answer a page's question what it may send to a path.

    None of them allows anything without the line that names the page's origin: see `Cors.headers`.
    """
    if not request.asked_method:
        return []
    lines = [
        b"access-control-allow-methods: " + ", ".join(methods).encode(),
        b"access-control-max-age: %d" % PREFLIGHT_AGE_S,
        b"vary: Access-Control-Request-Method, Access-Control-Request-Headers",
    ]
    if _NAMES.fullmatch(request.asked_headers) is not None:
        lines.append(b"access-control-allow-headers: " + request.asked_headers)
    return lines
