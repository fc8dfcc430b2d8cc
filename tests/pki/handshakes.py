"""Real TLS over loopback sockets, for tests."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmgw.config.agent import AgentTls
from llmgw.config.server import AgentsTls
from llmgw.pki.authority import Authority, IssuedCertificate
from llmgw.pki.handout import write_files

NOW = 1_900_000_000.0
DAY = 86400.0
DEADLINE_S = 10.0


class Listener:
    """Accepts TLS connections, answers each with `ok`, and keeps what it saw of the clients."""

    def __init__(self, context: ssl.SSLContext, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.bind((host, 0))
        self._socket.listen()
        self._socket.settimeout(DEADLINE_S)
        self.port: int = self._socket.getsockname()[1]
        self.peers: list[bytes | None] = []
        self.errors: list[Exception] = []
        self._context = context
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                raw, _ = self._socket.accept()
            except OSError:
                return
            raw.settimeout(DEADLINE_S)
            try:
                with raw, self._context.wrap_socket(raw, server_side=True) as connection:
                    self.peers.append(connection.getpeercert(binary_form=True))
                    connection.sendall(b"ok")
            except (OSError, ValueError) as error:
                self.errors.append(error)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(DEADLINE_S)


@contextlib.contextmanager
def listening(context: ssl.SSLContext, host: str = "127.0.0.1") -> Iterator[Listener]:
    listener = Listener(context, host)
    try:
        yield listener
    finally:
        listener.close()


def dial(context: ssl.SSLContext, port: int, name: str = "127.0.0.1", host: str = "127.0.0.1") -> bytes:
    """Connect to host:port, verify `name`, and read what the server says; raises what ssl raises."""
    with (
        socket.create_connection((host, port), DEADLINE_S) as raw,
        context.wrap_socket(raw, server_hostname=name) as connection,
    ):
        return connection.recv(16)


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "127.0.0.1", host: str = "127.0.0.1"
) -> bytes:
    """Returns the client's certificate as the server saw it; raises what the client's ssl raises."""
    with listening(server, host) as listener:
        assert dial(client, listener.port, name, host) == b"ok"
        (peer,) = listener.peers
        assert peer is not None
        return peer


def unchecked_context(ca: str, tls: AgentTls) -> ssl.SSLContext:
    """A client that trusts `ca` and shows whatever certificate it was given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    context.load_cert_chain(tls.cert, tls.key)
    return context


def agent_tls(issued: IssuedCertificate, folder: Path) -> AgentTls:
    """Write a client certificate as an operator would, and name its files."""
    return AgentTls(**write_files(issued, folder))


def server_tls(authority: Authority, issued: IssuedCertificate, folder: Path, **more: Any) -> AgentsTls:
    """Write a server certificate as an operator would, and name its files and the revocation list."""
    files = write_files(issued, folder)
    return AgentsTls(**files, revocations=str(authority.revocations_path), **more)
