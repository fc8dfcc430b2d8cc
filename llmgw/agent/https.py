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


class HttpsTransport:
    """`Transport` over httpx. `context` makes a TLS context from the files as they are now (blocking).

    `explain` turns a TLS failure into a sentence that says what to do.
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
        self._client = self._new_client(context())
        self._retiring: set[asyncio.Task[None]] = set()
        self._busy: dict[httpx.AsyncClient, int] = {}

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """POST `body` and return (status, body). Raises TransportError with a sentence."""
        client = self._client
        self._busy[client] = self._busy.get(client, 0) + 1
        try:
            # httpx's own limits are per read; an answer that drips in must end as well.
            async with asyncio.timeout(timeout_s):
                return await self._exchange(client, path, body, timeout_s)
        except TimeoutError:
            raise TransportError(f"{self._server} did not answer within {timeout_s:g} s") from None
        except httpx.TimeoutException as exc:
            if isinstance(exc, httpx.ConnectTimeout):
                raise TransportError(
                    f"{self._server} could not be reached within {CONNECT_TIMEOUT_S:g} s; "
                    "check the address, and firewalls between"
                ) from None
            raise TransportError(f"{self._server} did not answer within {timeout_s:g} s") from None
        except (httpx.HTTPError, ssl.SSLError, OSError) as exc:
            raise TransportError(self._sentence(exc)) from None
        finally:
            self._busy[client] -= 1
            if not self._busy[client]:
                del self._busy[client]

    async def reload(self) -> None:
        """Use the certificate files as they are now for every later call; calls under way end in peace.

        Raises OSError or ssl.SSLError when the files cannot be used; the old ones stay in use then.
        """
        context = await asyncio.to_thread(self._context)
        old, self._client = self._client, self._new_client(context)
        task = asyncio.create_task(self._retire(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await self._client.aclose()

    def _new_client(self, context: ssl.SSLContext) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._server,
            verify=context,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=8, keepalive_expiry=KEEPALIVE_S),
            headers={"content-type": "application/json", "accept-encoding": "identity"},
        )

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

    async def _retire(self, client: httpx.AsyncClient) -> None:
        try:
            while client in self._busy:
                await asyncio.sleep(0.2)
        finally:
            await client.aclose()

    def _sentence(self, exc: BaseException) -> str:
        cause: BaseException | None = exc
        while cause is not None:
            if isinstance(cause, ssl.SSLError):
                return self._explain(cause, self._server)
            cause = cause.__cause__ or cause.__context__
        return f"{self._server} cannot be talked to: {exc or type(exc).__name__}"
