"""Answers `GET /metrics` and nothing else: a request a connection, a few connections at a time, each briefly."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping

import structlog

from llmgw.config.addresses import is_loopback
from llmgw.metrics.family import CONTENT_TYPE

log = structlog.get_logger("agent")

HEAD_BYTES_MAX = 16 * 1024
CONNECTIONS_MAX = 16
TIMEOUT_S = 10.0
"""For the whole of a connection, TLS handshake excluded."""
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found"}
_REASONS |= {405: "Method Not Allowed", 500: "Internal Server Error", 503: "Service Unavailable"}
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


class MetricsHttp:
    """Give `answer` to `asyncio.start_server`, with `limit=HEAD_BYTES_MAX`."""

    def __init__(self, text: Callable[[], Awaitable[bytes]], token: Callable[[], str] | None) -> None:
        """`token` reads what scrapers must show, and raises OSError, or ValueError with a sentence. None:
        programs of this host may ask."""
        self._text = text
        self._token = token
        self._connections = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection and close it; one beyond `CONNECTIONS_MAX` is closed at once."""
        if self._connections >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, body = await self._answer(reader)
                writer.write(_head(status, body) + body)
                await writer.drain()
        except TimeoutError:
            writer.transport.abort()  # closing would wait for ever for whoever reads nothing
        except (OSError, asyncio.IncompleteReadError):
            pass  # it went away
        except asyncio.CancelledError:
            pass  # the agent ends; asyncio's streams would log this as a defect (CPython 3.11)
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return 400, b"the request's head is too long\n"
        first, _, rest = head.partition(b"\r\n")
        request = _REQUEST_LINE.fullmatch(first)
        if request is None:
            return 400, b"this is no HTTP request\n"
        refused = self._refusal(_headers(rest))
        if refused is not None:
            return refused
        if request[2].partition(b"?")[0] != b"/metrics":
            return 404, b"there is nothing here but /metrics\n"
        if request[1] != b"GET":
            return 405, b"/metrics takes GET\n"
        try:
            return 200, await self._text()
        except Exception:  # a scrape must not end the agent
            log.exception("the metrics cannot be told")
            return 500, b"the agent failed on this; its log says why\n"

    def _refusal(self, headers: Mapping[str, str]) -> tuple[int, bytes] | None:
        if self._token is None:
            return None if _is_local(headers) else (403, b"set metrics.token_file for whom is not on this host\n")
        try:
            token = self._token()
        except (OSError, ValueError) as error:
            log.error("metrics.token_file cannot be used", reason=str(error))
            return 503, b"metrics.token_file cannot be used; the agent's log says why\n"
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token.encode()):
            return None
        return (
            401,
            b"send the token of metrics.token_file: authorization: {credentials_file: ...} of Prometheus\n",
        )


def _is_local(headers: Mapping[str, str]) -> bool:
    """True for a program of this host that asks for itself: not a proxy, and not a browser whose page comes from
    elsewhere and had its name changed to this address (DNS rebinding)."""
    host = headers.get("host", "")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name) and not any(name in headers for name in _FORWARDED)


def _headers(head: bytes) -> dict[str, str]:
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")]
    return {name.strip().lower(): value.strip() for name, colon, value in lines if colon}


def _head(status: int, body: bytes) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"content-type: {CONTENT_TYPE if status == 200 else 'text/plain; charset=utf-8'}",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "connection: close",
        *(["www-authenticate: Bearer"] if status == 401 else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
