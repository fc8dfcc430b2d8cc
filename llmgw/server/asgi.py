"""Serves an ASGI application with uvicorn inside our own event loop: the admin API and the agents' endpoint.

Sockets are opened here, so that a busy port is a sentence; signals stay the process's own business.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import ssl
from collections.abc import Generator
from socket import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llmgw.config.addresses import HostPort
from llmgw.config.listeners import open_listeners
from llmgw.server.impatient import impatient

# Every TLS connection of asyncio allots, and touches, a read buffer of 256 KiB (CPython 3.11 to 3.13,
# `asyncio/sslproto.py`, undocumented). An agent holds two connections, so that 500 of them would take 250 MiB
# here; a TLS record is 16 KiB. Where the attribute is not there this changes nothing.
TLS_BUFFER_BYTES = 32 * 1024
asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES

KEEP_ALIVE_S = 75
CONNECTIONS_MAX = 512


class AsgiServer(uvicorn.Server):
    """uvicorn's server without signal handlers, with one call to run it and one to end it."""

    _serving: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def start(self, sockets: list[socket]) -> asyncio.Task[None]:
        """Serve in a task of the running loop. The task ends after `stop`, or raises what ended it."""
        self._serving = asyncio.get_running_loop().create_task(self.serve(sockets=sockets), name="asgi-server")
        return self._serving

    async def wait_started(self) -> None:
        """Return once connections are accepted; raise what prevented it."""
        assert self._serving is not None, "start comes first"
        while not self.started:
            if self._serving.done():
                self._serving.result()
                return
            await asyncio.sleep(0.005)

    async def stop(self, grace_s: float) -> None:
        """Accept no more, let running requests finish for `grace_s`, then cut what is left.

        Idle connections are closed at once. Calling it again with 0 cuts a stop short that is under way.
        """
        self.should_exit = True
        if self._serving is None:
            return
        await asyncio.wait([self._serving], timeout=grace_s)
        while not self._serving.done():
            self.force_exit = True
            # First the connections: a request that is cancelled on a closed one ends without a word in the log.
            for connection in list(self.server_state.connections):
                transport: Any = getattr(connection, "transport", None)
                if transport is not None:
                    transport.abort()
            for task in list(self.server_state.tasks):
                task.cancel()
            await asyncio.wait([self._serving], timeout=0.05)


def serve_asgi(
    app: ASGIApp,
    listen: HostPort,
    *,
    ssl_context: ssl.SSLContext | None = None,
    http: type[HttpToolsProtocol] = HttpToolsProtocol,
    setting: str = "admin.listen",
    connections_max: int = CONNECTIONS_MAX,
) -> tuple[AsgiServer, list[socket]]:
    """A server for `app` and its bound, listening sockets; run it with `server.start(sockets)`.

    `ssl_context` is used as it is (and may be reloaded while serving); None is plain HTTP. `http` is the
    protocol class, for listeners that put more into the scope. `setting` is the configuration key that a
    refused address is blamed on. Beyond `connections_max` connections requests are answered 503. Beyond twice as
    many they are closed as they come, and so are those of an address that has half of them already.

    Raises ListenError (a SentenceError) when the address cannot be listened on.
    """
    sockets = open_listeners(listen, setting)
    try:
        config = uvicorn.Config(
            _cut_quietly(app),
            http=impatient(http, connections_max=2 * connections_max, of_peer_max=max(1, connections_max // 2)),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            # X-Forwarded-For decides nothing here: loopback is judged, and attempts counted, by the real peer.
            proxy_headers=False,
            server_header=False,
            limit_concurrency=connections_max,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        config.load()
        # Older releases have no `ssl_context_factory`; all of them read this attribute when they start.
        config.ssl = ssl_context
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return AsgiServer(config), sockets


def _cut_quietly(app: ASGIApp) -> ASGIApp:
    """`app`, whose cancelled requests just end: uvicorn would log each of them as a defect, with a traceback."""

    async def quiet(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            return

    return quiet
