"""How the playground reaches its own routers over TLS: by the very certificate that they show."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from llmgw.pki.authority import Authority
from llmgw.pki.files import install_pair
from llmgw.server.admin.backend import AdminError
from llmgw.server.playground import Playground

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(ANSWER)
    await writer.drain()
    writer.close()


def test_over_tls_it_is_the_certificate_itself_that_is_asked_for_whatever_name_it_has(tmp_path: Path) -> None:
    authority = Authority.create(
        tmp_path / "pki", name="test", permit_dns=(), permit_ip=(), now=time.time(), days=365
    )
    for name in ("ours", "other"):
        issued = authority.issue_server(["gateway.internal"], time.time())
        install_pair(tmp_path / f"{name}.pem", tmp_path / f"{name}.key", issued.cert_pem, issued.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ours.pem", tmp_path / "ours.key")

    async def main() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]

        def playground(name: str) -> Playground:
            cert = str(tmp_path / f"{name}.pem")
            return Playground(lambda: f"0.0.0.0:{port}", key="k", needs_key=lambda: True, tls_cert=cert)

        async with server:
            async with playground("ours").chat(b"{}") as answer:
                assert (answer.status_code, await answer.aread()) == (200, b"{}")
            assert playground("ours").base_url("gw.internal") == f"https://gw.internal:{port}/v1"
            for name, words in (("other", "certificate"), ("none", "cannot be read")):
                failing = playground(name)
                with pytest.raises(AdminError, match=words):
                    async with failing.chat(b"{}"):
                        raise AssertionError("it was asked")
                assert failing.running == 0

    asyncio.run(main())
