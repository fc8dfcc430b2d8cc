from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from llmgw.config.agent import AgentTls
from llmgw.config.server import AgentsTls
from llmgw.pki.authority import Authority
from llmgw.pki.tls import agents_server_context
from tests.pki.handshakes import agent_tls, server_tls


@pytest.fixture
def now() -> float:
    """OpenSSL has a clock of its own, so tests with handshakes issue around the real time."""
    return time.time()


@pytest.fixture
def authority(tmp_path: Path, now: float) -> Authority:
    return Authority.create(tmp_path / "pki", name="test", permit_dns=(), permit_ip=(), now=now, days=3650)


@pytest.fixture
def agents_tls(authority: Authority, tmp_path: Path, now: float) -> AgentsTls:
    return server_tls(authority, authority.issue_server(["127.0.0.1", "::1", "gw.lan"], now), tmp_path / "server")


@pytest.fixture
def server(agents_tls: AgentsTls) -> ssl.SSLContext:
    return agents_server_context(agents_tls)


@pytest.fixture
def node01(authority: Authority, tmp_path: Path, now: float) -> AgentTls:
    return agent_tls(authority.issue_client("node01", "10.0.0.1", now), tmp_path / "node01")
