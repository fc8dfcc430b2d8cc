"""Opens listening sockets, and says in a sentence why one cannot be opened."""

from __future__ import annotations

import errno
import socket

from llmgw.config.addresses import HostPort, join_host_port, split_host_port
from llmgw.config.errors import SentenceError

BACKLOG = 1024


class ListenError(SentenceError):
    """An address that cannot be listened on."""


def open_listeners(listen: HostPort, setting: str) -> list[socket.socket]:
    """One bound, listening socket for each address that the host of `listen` has (`localhost` has two).

    Port 0 takes a free one, the same for all. `setting` is the configuration key to name in errors.
    Raises ListenError with a sentence.
    """
    host, port = split_host_port(listen)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ListenError(
            f"{host!r} in {setting} is no address of this host, and no name that it knows"
        ) from None
    sockets: list[socket.socket] = []
    refused: ListenError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        if sockets and port == 0:
            port = sockets[0].getsockname()[1]
        try:
            sockets.append(_listen(family, kind, protocol, (address[0], port, *address[2:])))
        except OSError as error:
            refused = ListenError(_sentence(error, str(address[0]), port, setting))
            # A machine without IPv6 still has `::1` for localhost in its hosts file.
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue
            for sock in sockets:
                sock.close()
            raise refused from None
    if not sockets:
        raise refused or ListenError(f"{listen} in {setting} has no address")
    return sockets


def _listen(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        # Without it a restarted server finds its own last connections in TIME_WAIT and calls the port busy.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _sentence(error: OSError, host: str, port: int, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        who = listening_process(port) or "another program listens there"
        return f"port {port} on {host} is busy: {who}; stop what listens there or set {setting}"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return f"{host} is no address of this host; set {setting} to one of its own, or to 127.0.0.1:{port}"
    if error.errno == errno.EACCES:
        return f"port {port} needs root or CAP_NET_BIND_SERVICE; set {setting} to a port from 1024 up"
    return f"cannot listen on {join_host_port(host, port)} ({error.strerror}); check {setting}"


def listening_process(port: int) -> str | None:
    """`nginx (pid 812) listens there`, when this user may know."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status != psutil.CONN_LISTEN or not connection.pid or not connection.laddr:
                continue
            if connection.laddr.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid}) listens there"
    except (psutil.Error, OSError, RuntimeError):
        pass
    return None
