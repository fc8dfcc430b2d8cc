"""Serving ASGI over TLS: answers come, and who takes nothing of one is let go as without it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from llmgw.server import impatient
from llmgw.server.asgi import serve_asgi
from tests.ctl.test_asgi import endless, hello, short
from tests.ctl.test_ctl_finds_server import Authority


@pytest.fixture
def trusted(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(the server's, a client's that trusts it)."""
    authority = Authority(tmp_path)
    return authority.context("localhost"), ssl.create_default_context(cafile=str(authority.ca))


@pytest.mark.parametrize(("app", "length"), [(hello, 2), (short, 8_000_000)])
def test_an_answer_comes_at_once_and_so_does_the_next_on_the_same_connection(
    trusted: tuple[ssl.SSLContext, ssl.SSLContext], app: object, length: int
) -> None:
    async def go() -> None:
        server, sockets = serve_asgi(app, "127.0.0.1:0", ssl_context=trusted[0])  # type: ignore[arg-type]
        server.start(sockets)
        address = sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address, ssl=trusted[1], server_hostname="localhost")
        async with asyncio.timeout(20):
            for _ in range(3):
                writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                assert len(await reader.readexactly(length)) == length
        writer.close()
        await server.stop(1)

    asyncio.run(go())


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
