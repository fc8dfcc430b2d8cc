"""Asking an engine whether it works, over HTTP on the node's own address."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import httpx

from llmgw.config.addresses import join_host_port
from llmgw.config.no_tls import no_tls
from llmgw.engines.base import HttpCheck

ANSWER_BYTES_MAX = 4 * 1024 * 1024
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class ProbeResult:
    """What came back. `note` is half a sentence for people: `the connection was refused`."""

    ok: bool
    note: str


class Prober:
    """One engine's checks, which carry its key where it has one. Proxy variables are ignored."""

    def __init__(self, address: str, port: int) -> None:
        self._client = httpx.AsyncClient(
            base_url=f"http://{join_host_port(address, port)}",
            verify=no_tls(),
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def loaded(self, check: HttpCheck) -> ProbeResult:
        """The cheap check: any 2xx answer that does not name an error, an empty one included."""
        return await self._ask(check, strict=False)

    async def works(self, check: HttpCheck) -> ProbeResult:
        """The one-token request: a 2xx answer whose body is JSON, holds something, and no `error`."""
        return await self._ask(check, strict=True)

    async def _ask(self, check: HttpCheck, *, strict: bool) -> ProbeResult:
        what = f"{check.method} {check.path}"
        try:
            # The client's own limits are per read; an engine that drips bytes must not hold a check for ever.
            async with asyncio.timeout(check.timeout_s):
                status, body = await self._exchange(check)
        except TimeoutError:
            return ProbeResult(False, f"{what} was not answered within {check.timeout_s:g} s")
        except httpx.ConnectError:
            return ProbeResult(False, f"{what}: nothing listens yet")
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            return ProbeResult(False, f"{what}: {exc or type(exc).__name__}")
        shown = body[:_SHOWN_CHARACTERS].decode("utf-8", "replace").strip()
        if not 200 <= status < 300:
            return ProbeResult(False, f"{what} was answered with {status}: {shown}".rstrip(": "))
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            return ProbeResult(not strict, f"{what} was answered with {status} and no JSON: {shown}")
        if strict and not (isinstance(answer, dict | list) and answer):
            return ProbeResult(False, f"{what} was answered with {status} and nothing: {shown}")
        if isinstance(answer, dict) and answer.get("error"):
            return ProbeResult(False, f"{what} was answered with an error: {shown}")
        return ProbeResult(True, f"{what} was answered with {status}")

    async def _exchange(self, check: HttpCheck) -> tuple[int, bytes]:
        timeout = httpx.Timeout(check.timeout_s)
        async with self._client.stream(
            check.method, check.path, content=check.body, headers=check.headers, timeout=timeout
        ) as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    break
            return response.status_code, bytes(body)
