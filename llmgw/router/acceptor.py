"""Takes connections from listening sockets that other workers accept from too, and leaves them their part.

The kernel wakes every worker for a connection, and whoever is quickest has it. Left to that (or to an event loop
that accepts until nobody waits) one worker gets nearly all: connections are kept, and so is the imbalance. So a
worker takes one at a time, and the more clients it has, the longer it leaves the next one to the others.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmgw.router.limits import DRAIN_IDLE_S, HANDSHAKE_S
from llmgw.router.seldom import Seldom
from llmgw.router.service import Service

if TYPE_CHECKING:
    from llmgw.router.client_tls import ClientTls

log = logging.getLogger(__name__)

# From so many clients on, a connection is left to the others for so long. Event loops count in milliseconds; a
# worker that is free wakes and accepts in a tenth of one.
_PATIENCE_S = ((256, 0.003), (32, 0.002), (4, 0.001))
# One that is full refuses only who finds no room elsewhere either.
_FULL_PATIENCE_S = 0.2
_ALONE_AT_ONCE = 64
# One with many takes several after its wait, so that a crowd that comes back is not let in one by one.
_MANY_AT_ONCE = 8
# No descriptors left: connections that end give some back.
_EXHAUSTED_S = 0.2
_EXHAUSTED_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts for a service until it is closed, with `tls` when clients have to speak it."""

    def __init__(
        self, service: Service, listeners: Sequence[socket.socket], tls: ClientTls | None = None
    ) -> None:
        self._service = service
        self._tls = tls
        self._loop = service.loop
        self._listeners = list(listeners)
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        self._starting: set[asyncio.Task[object]] = set()
        self._cannot_accept = Seldom(log)

    def start(self) -> None:
        """Accept from now on."""
        for sock in self._listeners:
            self._watch(sock)

    async def close(self) -> None:
        """Accept no more. Who waits is left to the others that have these sockets."""
        for sock in self._listeners:
            self._pause(sock)
            sock.close()
        self._listeners = []
        if self._starting:
            _, slow = await asyncio.wait(self._starting, timeout=DRAIN_IDLE_S)
            for task in slow:  # handshakes that a client leaves unfinished
                task.cancel()

    def _watch(self, sock: socket.socket) -> None:
        self._timers.pop(sock, None)
        self._loop.add_reader(sock.fileno(), self._ready, sock)

    def _pause(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock.fileno())
        timer = self._timers.pop(sock, None)
        if timer is not None:
            timer.cancel()

    def _ready(self, sock: socket.socket) -> None:
        patience_s = self._patience_s()
        if patience_s:
            # Not looked at meanwhile: the loop would spin.
            self._pause(sock)
            self._timers[sock] = self._loop.call_later(patience_s, self._after_waiting, sock)
        else:
            self._take(sock)

    def _after_waiting(self, sock: socket.socket) -> None:
        self._watch(sock)
        self._take(sock)

    def _patience_s(self) -> float:
        limits = self._service.limits
        if limits.workers == 1:
            return 0.0
        clients = len(self._service.clients) + len(self._starting)
        if clients >= limits.connections_max:
            return _FULL_PATIENCE_S
        return next((patience_s for least, patience_s in _PATIENCE_S if clients >= least), 0.0)

    def _at_once(self) -> int:
        limits = self._service.limits
        if limits.workers == 1:
            return _ALONE_AT_ONCE
        clients = len(self._service.clients) + len(self._starting)
        if clients < _PATIENCE_S[0][0]:
            return 1
        room = limits.connections_max - clients
        return min(_MANY_AT_ONCE, room) if room > 0 else _MANY_AT_ONCE

    def _take(self, sock: socket.socket) -> None:
        for _ in range(self._at_once()):
            try:
                connection, _address = sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED_ERRORS:
                    self._rest(sock, error)
                    return
                continue  # it was over before it was accepted (accept(2) names several errors for that)
            if len(self._starting) + len(self._service.clients) >= self._most():
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._begin(connection))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._service.accept, connection)
            else:
                await self._loop.connect_accepted_socket(
                    self._service.accept,
                    connection,
                    ssl=self._tls.context,
                    ssl_handshake_timeout=min(HANDSHAKE_S, self._service.limits.header_timeout_s),
                    # What has been written and not been read is part of it.
                    ssl_shutdown_timeout=self._service.limits.stall_timeout_s,
                )
        except OSError as error:
            log.debug("a connection did not come about: %s", error)
            connection.close()

    def _most(self) -> int:
        """Who shakes hands is no client yet, and holds a descriptor all the same."""
        limits = self._service.limits
        return limits.connections_max + limits.overflow_connections_max

    def _rest(self, sock: socket.socket, error: OSError) -> None:
        self._cannot_accept.error("clients wait, since none more can be accepted: %s", error.strerror)
        self._pause(sock)
        self._timers[sock] = self._loop.call_later(_EXHAUSTED_S, self._watch, sock)
