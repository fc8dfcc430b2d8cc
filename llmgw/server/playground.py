"""Passes what operators ask in the playground on to a router of this server, in the server's own name.

Pages may talk to nothing but the address that they come from, and operators need no key of the model API.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Callable

import httpx

from llmgw.config.addresses import join_host_port, split_host_port
from llmgw.server.admin.backend import AdminError

STREAMS_MAX = 16
"""Chats at a time, of all operators together."""
CONNECT_S_MAX = 5.0
SILENCE_S_MAX = 3600.0
"""For a router that hangs. One that works ends what takes longer than its model's own limits."""
PATH = "/v1/chat/completions"
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_PLAIN_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}|[0-9A-Fa-f:.]{2,45}")


class Playground:
    """`AdminPlayground`. Each chat has a connection of its own, which ends with it."""

    def __init__(
        self,
        listen: Callable[[], str],
        *,
        key: str,
        needs_key: Callable[[], bool],
        tls_cert: str | None = None,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        """`listen` tells where a router listens, as `host:port`. `tls_cert` is the certificate that it shows, the
        very one of which this server has the key; None: it speaks plain HTTP."""
        self._listen = listen
        self._key = key
        self._needs_key = needs_key
        self._tls_cert = tls_cert
        self._streams_max = streams_max
        self.running = 0

    @property
    def needs_key(self) -> bool:
        """Whether clients of the model API need one."""
        return self._needs_key()

    def base_url(self, asked_as: str) -> str:
        """The model API's address as clients have it. `asked_as` is by what name this host was reached."""
        host, port = split_host_port(self._listen())
        if host in _ANY:
            host = asked_as if _PLAIN_HOST.fullmatch(asked_as) else _ANY[host]
        return f"{self._scheme}://{join_host_port(host, port)}/v1"

    @contextlib.asynccontextmanager
    async def chat(self, body: bytes) -> AsyncIterator[httpx.Response]:
        """The gateway's answer to this body, not read yet; its engine stops when the block is left.

        Raises AdminError(429) when too many run, and AdminError(502) when no router answers.
        """
        if self.running >= self._streams_max:
            raise AdminError(
                429,
                "too-many-chats",
                f"as many chats of the playground run as may at a time ({self._streams_max}); stop one, or try "
                "again when one has ended",
            )
        host, port = split_host_port(self._listen())
        url = f"{self._scheme}://{join_host_port(_ANY.get(host, host), port)}{PATH}"
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "x-queue-position": "1",
        }
        if self.needs_key:
            headers["authorization"] = f"Bearer {self._key}"
        self.running += 1
        try:
            async with (
                httpx.AsyncClient(trust_env=False, verify=self._verify(), timeout=_TIMEOUT) as client,
                client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                yield answer
        except httpx.ConnectError as error:
            raise _unreachable(url, str(error) or "it cannot be reached") from None
        except httpx.TimeoutException:
            raise _unreachable(url, "it does not answer in time") from None
        except httpx.HTTPError as error:
            raise _unreachable(url, f"the connection broke ({error or type(error).__name__})") from None
        finally:
            self.running -= 1

    @property
    def _scheme(self) -> str:
        return "http" if self._tls_cert is None else "https"

    def _verify(self) -> ssl.SSLContext | bool:
        if self._tls_cert is None:
            return False  # nothing is verified over plain HTTP, and no authorities need be read
        # It is reached by an address that its certificate need not name, so that very certificate is asked for.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(self._tls_cert)
        except (OSError, ssl.SSLError) as error:
            raise AdminError(
                502, "no-certificate", f"tls.cert {self._tls_cert} cannot be read ({error})"
            ) from None
        return context


_TIMEOUT = httpx.Timeout(SILENCE_S_MAX, connect=CONNECT_S_MAX, pool=CONNECT_S_MAX)


def _unreachable(url: str, why: str) -> AdminError:
    return AdminError(
        502, "no-router", f"no router answers at {url}: {why}; llmgw ctl status says how the routers are"
    )
