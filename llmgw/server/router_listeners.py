"""The model API's listening sockets as the server keeps them: opened once, and given to each router."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from llmgw.config.addresses import HostPort, split_host_port
from llmgw.config.listeners import bound_address, open_listener, systemd_listeners


class RouterListeners:
    """None at first: a router of an earlier server may have them, and hands them over with its greeting."""

    def __init__(self, listen: HostPort) -> None:
        self._listen = listen
        self.sockets: list[socket.socket] = []

    def inherit(self) -> None:
        """Take those of a socket unit, if this server was started with one. Raises ListenError."""
        self.sockets = systemd_listeners()

    def open(self) -> None:
        """Open what is configured, unless there is one. Raises ListenError."""
        if not self.sockets:
            self.sockets = [open_listener(self._listen, "listen")]

    def adopt(self, sockets: Sequence[socket.socket]) -> None:
        """Keep a router's if there are none and they are what is configured; else close them."""
        if not self.sockets and sockets and self._is_configured(bound_address(sockets[0])):
            self.sockets = list(sockets)
            return
        for sock in sockets:
            sock.close()

    def fits(self, listen: str) -> bool:
        """True when a router that listens there listens where it should."""
        if self.sockets:
            return listen == bound_address(self.sockets[0])
        return self._is_configured(listen)

    def close(self) -> None:
        """Nobody is to be served any more: what queues is refused."""
        for sock in self.sockets:
            sock.close()
        self.sockets = []

    def _is_configured(self, listen: str) -> bool:
        port = split_host_port(self._listen)[1]
        return port in (0, split_host_port(listen)[1])
