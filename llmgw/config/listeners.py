"""Opens the listening sockets that the configuration names, and says in a sentence why one cannot be had."""

from __future__ import annotations

import errno
import os
import socket

from llmgw.config.addresses import join_host_port

BACKLOG = 4096


class ListenError(Exception):
    """An address that cannot be listened on; the message is a sentence for the operator."""


def open_listener(host: str, port: int, *, what: str = "the model API") -> socket.socket:
    """A listening, non-blocking TCP socket on `host`:`port` (port 0: any free one).

    TCP_NODELAY is set here because accepted sockets inherit it on Linux (tcp(7)); the protocol number is given
    because asyncio leaves Nagle's delay on for sockets made without it. `::` also takes IPv4.
    Raises ListenError with a sentence that names `what`, the address and the remedy.
    """
    where = join_host_port(host, port)
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        raise ListenError(
            f"cannot listen on {where} for {what}: the name {host!r} has no address here ({error}); "
            "write an address of this host"
        ) from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, kind, _, _, address = found[0]
    sock = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ListenError(f"cannot listen on {where} for {what}: {_remedy(error, where)}") from None
    return sock


def bound_address(sock: socket.socket) -> str:
    """`host:port` that a socket listens on, the port that was chosen for port 0 included."""
    name = sock.getsockname()
    return join_host_port(str(name[0]), int(name[1])) if isinstance(name, tuple) else str(name)


def _remedy(error: OSError, where: str) -> str:
    if error.errno == errno.EADDRINUSE:
        port = where.rpartition(":")[2]
        return (
            f"another process listens there; end it (ss -ltnp 'sport = :{port}' names it) or choose another port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return "this host has no such address (ip address shows those it has)"
    if error.errno == errno.EACCES:
        return "ports below 1024 need the capability CAP_NET_BIND_SERVICE; choose a higher port"
    return f"{os.strerror(error.errno) if error.errno else error}"
