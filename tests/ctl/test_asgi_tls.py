"""Serving ASGI over TLS: who takes nothing of an answer is let go as without it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from llmgw.server import impatient
from llmgw.server.asgi import serve_asgi
from tests.ctl.test_asgi import endless
from tests.ctl.test_ctl_finds_server import Authority


@pytest.fixture
def trusted(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(the server's, a client's that trusts it)."""
    authority = Authority(tmp_path)
    return authority.context("localhost"), ssl.create_default_context(cafile=str(authority.ca))


def test_who_never_reads_the_answer_is_let_go(
    trusted: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impatient, "UNREAD_S", 0.2)

    async def go() -> None:
        server, sockets = serve_asgi(endless, "127.0.0.1:0", ssl_context=trusted[0])
        server.start(sockets)
        await server.wait_started()

        def deaf() -> ssl.SSLSocket:
            plain = socket.create_connection(sockets[0].getsockname())
            client = trusted[1].wrap_socket(plain, server_hostname="localhost")
            client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            return client

        client = await asyncio.to_thread(deaf)
        with client:
            async with asyncio.timeout(10):
                while not server.server_state.connections:  # noqa: ASYNC110 - the server sets no event
                    await asyncio.sleep(0.01)
                while server.server_state.connections:  # noqa: ASYNC110 - the server sets no event
                    await asyncio.sleep(0.01)
        await server.stop(1)

    asyncio.run(go())
