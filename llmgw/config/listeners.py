"""The listening sockets of this process: opened as configured, or inherited from whoever started it.

Why one cannot be had is said in a sentence.
"""

from __future__ import annotations

import errno
import os
import socket

from llmgw.config.addresses import HostPort, join_host_port, split_host_port
from llmgw.config.errors import SentenceError

BACKLOG = 4096
_SYSTEMD_FIRST_FD = 3


class ListenError(SentenceError):
    """An address that cannot be listened on."""


def open_listener(listen: HostPort, setting: str) -> socket.socket:
    """A listening, non-blocking TCP socket on the first address of `listen` (port 0: any free one), IPv4 first.

    `::` also takes IPv4. `setting` is the configuration key or option to name in errors.
    Raises ListenError.
    """
    host, port = split_host_port(listen)
    found = sorted(_addresses(host, port, setting), key=lambda entry: entry[0] != socket.AF_INET)
    family, address = found[0]
    try:
        return _listen(family, address, v6only=host != "::")
    except OSError as error:
        raise ListenError(_sentence(error, str(address[0]), port, setting)) from None


def open_listeners(listen: HostPort, setting: str) -> list[socket.socket]:
    """The same on each address that the host of `listen` has (`localhost` has two). Port 0 is the same for all.

    Raises ListenError.
    """
    host, port = split_host_port(listen)
    sockets: list[socket.socket] = []
    refused: ListenError | None = None
    for family, address in _addresses(host, port, setting):
        if sockets and port == 0:
            port = sockets[0].getsockname()[1]
        try:
            sockets.append(_listen(family, (address[0], port, *address[2:]), v6only=True))
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


def inherited_listener(descriptor: int) -> socket.socket:
    """A socket that whoever started this process opened. Raises ListenError when it does not listen for TCP."""
    try:
        sock = socket.socket(fileno=descriptor)
        listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ListenError(f"descriptor {descriptor} is no socket to listen on ({error.strerror})") from None
    if not listening or sock.type != socket.SOCK_STREAM:
        raise ListenError(f"descriptor {descriptor} is no listening TCP socket")
    os.set_inheritable(descriptor, False)
    sock.setblocking(False)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def systemd_listeners() -> list[socket.socket]:
    """The sockets of a socket unit (sd_listen_fds(3)), none without one; not passed on. Raises ListenError."""
    count, pid = os.environ.pop("LISTEN_FDS", ""), os.environ.pop("LISTEN_PID", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if not count.isdigit() or pid != str(os.getpid()):
        return []
    return [inherited_listener(_SYSTEMD_FIRST_FD + index) for index in range(int(count))]


def bound_address(sock: socket.socket) -> str:
    """`host:port` that a socket listens on, the port that was chosen for port 0 included."""
    name = sock.getsockname()
    return join_host_port(str(name[0]), int(name[1])) if isinstance(name, tuple) else str(name)


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


def is_own_address(host: str) -> bool:
    """Whether something on this machine could listen at a name or address; True for what cannot be known now."""
    try:
        found = _addresses(host, 0, "")
    except ListenError:
        return True  # a name that is in no directory yet; whoever listens says so
    return any(_is_bound_here(family, address) for family, address in found)


def _is_bound_here(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind(address)
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def _addresses(host: str, port: int, setting: str) -> list[tuple[int, tuple[object, ...]]]:
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        raise ListenError(
            f"{host!r} in {setting} is no address of this host, and no name that it knows"
        ) from None
    return list(dict.fromkeys((entry[0], entry[4]) for entry in found))


def _listen(family: int, address: tuple[object, ...], *, v6only: bool) -> socket.socket:
    # The protocol number is given because asyncio leaves Nagle's delay on for sockets made without it.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Without it a restarted server finds its own last connections in TIME_WAIT and calls the port busy.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Here because accepted sockets inherit it on Linux (tcp(7)).
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(v6only))
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
    why = os.strerror(error.errno) if error.errno else str(error)
    return f"cannot listen on {join_host_port(host, port)} ({why}); check {setting}"
