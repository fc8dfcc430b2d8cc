"""uvicorn with the peer's certificate in the scope, and what httpx makes of refusals, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from llmgw.config.agent import AgentTls
from llmgw.pki.authority import Authority
from llmgw.pki.peer import peer_from_der
from llmgw.pki.tls import agent_context, agents_server_context, explain_tls_error
from llmgw.server.peer_protocol import PeerHttpToolsProtocol, client_cert_der
from tests.pki.handshakes import DAY, DEADLINE_S, agent_tls, server_tls, unchecked_context


async def who_is_there(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers with the node id and address that the connection proved, and the client's port."""
    der = client_cert_der(scope)
    peer = None if der is None else peer_from_der(der)
    body = json.dumps(
        [None, None, scope["client"][1]] if peer is None else [peer.node_id, peer.address, scope["client"][1]]
    ).encode()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}
    )
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving(context: ssl.SSLContext | None, loop: str = "asyncio") -> Iterator[int]:
    config = uvicorn.Config(
        who_is_there,
        host="127.0.0.1",
        port=0,
        loop=loop,  # type: ignore[arg-type]
        http=PeerHttpToolsProtocol,
        ws="none",
        lifespan="off",
        log_level="critical",
        ssl_context_factory=None if context is None else lambda *_: context,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + DEADLINE_S
    while not server.started:
        assert time.monotonic() < deadline
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_each_request_of_a_connection_carries_the_peers_certificate(
    server: ssl.SSLContext, node01: AgentTls, authority: Authority, tmp_path: Path, now: float, loop: str
) -> None:
    other = agent_tls(authority.issue_client("node02", "fd00::2", now), tmp_path / "node02")
    with serving(server, loop) as port:
        url = f"https://127.0.0.1:{port}/"
        with (
            httpx.Client(verify=agent_context(node01), trust_env=False) as one,
            httpx.Client(verify=agent_context(other), trust_env=False) as two,
        ):
            answers = [client.get(url).json() for client in (one, two, one, two, one)]
    assert [answer[:2] for answer in answers] == [
        ["node01", "10.0.0.1"],
        ["node02", "fd00::2"],
        ["node01", "10.0.0.1"],
        ["node02", "fd00::2"],
        ["node01", "10.0.0.1"],
    ]
    assert len({answer[2] for answer in answers}) == 2  # two connections, kept alive


def test_pipelined_requests_carry_it_too(server: ssl.SSLContext, node01: AgentTls) -> None:
    request = b"GET / HTTP/1.1\r\nHost: gw\r\n\r\n"
    with (
        serving(server) as port,
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as raw,
        agent_context(node01).wrap_socket(raw, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(request * 3)
        answer = b""
        while answer.count(b'["node01", "10.0.0.1"') < 3:
            data = connection.recv(4096)
            assert data, answer
            answer += data


def test_a_forged_header_or_a_plain_connection_proves_nothing(server: ssl.SSLContext) -> None:
    with serving(None) as port:
        headers = {"x-client-cert": "node01", "x-ssl-client-cert": "node01"}
        answer = httpx.get(f"http://127.0.0.1:{port}/", headers=headers, trust_env=False).json()
    assert answer[:2] == [None, None]


def async_get(url: str, context: ssl.SSLContext) -> None:
    async def get() -> None:
        async with httpx.AsyncClient(verify=context, trust_env=False, timeout=DEADLINE_S) as client:
            await client.get(url)

    asyncio.run(get())


def sync_get(url: str, context: ssl.SSLContext) -> None:
    httpx.get(url, verify=context, trust_env=False, timeout=DEADLINE_S)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("get", [sync_get, async_get])
def test_what_httpx_raises_becomes_a_sentence(
    authority: Authority,
    server: ssl.SSLContext,
    node01: AgentTls,
    tmp_path: Path,
    now: float,
    get: Any,
    loop: str,
) -> None:
    other = Authority.create(tmp_path / "other", permit_dns=(), permit_ip=(), now=now)
    foreign = agent_tls(other.issue_client("node01", "10.0.0.1", now), tmp_path / "foreign")
    past = now - 40 * DAY
    expired = agent_tls(authority.issue_client("node01", "10.0.0.1", past, days=30), tmp_path / "old")
    elsewhere = server_tls(authority, authority.issue_server(["gw.lan"], now), tmp_path / "gw")

    def sentence(url: str, context: ssl.SSLContext) -> str:
        # anyio's streams let some of ssl's own errors through httpx as they are
        with pytest.raises((httpx.TransportError, ssl.SSLError)) as caught:
            get(url, context)
        return explain_tls_error(caught.value, url)

    with serving(server, loop) as port:
        url = f"https://127.0.0.1:{port}"
        assert "it comes from another authority" in sentence(url, unchecked_context(node01.ca, foreign))
        assert "it has expired" in sentence(url, agent_context(expired, now=past))
        assert "copy ca.pem from the server's authority" in sentence(url, agent_context(foreign))
        get(url, agent_context(node01))
    with serving(agents_server_context(elsewhere)) as port:
        assert "does not name 127.0.0.1" in sentence(f"https://127.0.0.1:{port}", agent_context(node01))
    with serving(None) as port:
        assert "does not speak TLS" in sentence(f"https://127.0.0.1:{port}", agent_context(node01))
    assert "Nothing listens at" in sentence(f"https://127.0.0.1:{port}", agent_context(node01))
    assert "cannot be resolved" in sentence("https://nowhere.invalid:1", agent_context(node01))


def test_what_nobody_foresaw_still_becomes_a_sentence() -> None:
    assert explain_tls_error(RuntimeError("odd\nthing"), "https://gw:1").startswith(
        "gw:1 cannot be reached: odd thing."
    )
    assert "did not answer in time" in explain_tls_error(httpx.ConnectTimeout(""), "https://[::1]:8443")
    assert "[::1]:8443" in explain_tls_error(TimeoutError(), "https://[::1]:8443")
