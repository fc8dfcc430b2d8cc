"""The agent's link to the server: HTTPS with mutual TLS, dialled from here, no proxy of the environment used."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import httpx

from llmgw.agent.conversation import TransportError
from llmgw.messages.agent import BODY_BYTES_MAX

CONNECT_TIMEOUT_S = 10.0
# Below the 30 s for which the poorest proxies hold an idle connection, above the usual heartbeat.
KEEPALIVE_S = 20.0


class _Link:
    """One client and how many calls it has under way; a retired one is closed after its last call."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.busy = 0
        self.retired = False


class HttpsTransport:
    """`Transport` over httpx. `context` makes a TLS context from the files as they are now (blocking).

    `explain` turns a failure into a sentence that says what to do; it may block.
    """

    def __init__(
        self,
        server: str,
        context: Callable[[], ssl.SSLContext],
        *,
        explain: Callable[[BaseException, str], str],
    ) -> None:
        self._server = server
        self._context = context
        self._explain = explain
        self._link = self._new_link(context())

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """POST `body` and return (status, body). Raises TransportError with a sentence."""
        link = self._link
        link.busy += 1
        try:
            # httpx's own limits are per read; an answer that drips in must end as well.
            async with asyncio.timeout(timeout_s):
                return await self._exchange(link.client, path, body, timeout_s)
        except TimeoutError:
            raise TransportError(f"{self._server} did not answer within {timeout_s:g} s") from None
        except (httpx.HTTPError, ssl.SSLError, OSError) as exc:
            raise TransportError(await asyncio.to_thread(self._explain, exc, self._server)) from None
        finally:
            link.busy -= 1
            if link.retired and not link.busy:
                await link.client.aclose()

    async def reload(self) -> None:
        """Use the certificate files as they are now for every later call; calls under way end in peace.

        Raises OSError or ssl.SSLError when the files cannot be used; the old ones stay in use then.
        """
        context = await asyncio.to_thread(self._context)
        old, self._link = self._link, self._new_link(context)
        old.retired = True
        if not old.busy:
            await old.client.aclose()

    async def close(self) -> None:
        await self._link.client.aclose()

    def _new_link(self, context: ssl.SSLContext) -> _Link:
        client = httpx.AsyncClient(
            base_url=self._server,
            verify=context,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=8, keepalive_expiry=KEEPALIVE_S),
            headers={"content-type": "application/json", "accept-encoding": "identity"},
        )
        return _Link(client)

    async def _exchange(
        self, client: httpx.AsyncClient, path: str, body: bytes, timeout_s: float
    ) -> tuple[int, bytes]:
        timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s))
        async with client.stream("POST", path, content=body, timeout=timeout) as response:
            answer = bytearray()
            async for chunk in response.aiter_bytes():
                answer += chunk
                if len(answer) > BODY_BYTES_MAX:
                    raise TransportError(f"{self._server} answered with more than {BODY_BYTES_MAX} bytes")
            return response.status_code, bytes(answer)
