"""Who is revoked or removed while a message is on its way is refused as one who comes afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate
from starlette.types import Receive, Scope, Send

from llmgw.config.catalog import Catalog
from llmgw.fleet.settings import FleetSettings
from llmgw.pki.authority import REVOKED, Authority
from llmgw.pki.renewal import Renewer
from llmgw.pki.revocation import RevocationList
from llmgw.server.agents_api import AgentsApi
from llmgw.server.hub import Clock, Hub
from llmgw.server.ids import RandomIds
from llmgw.server.upgrades.releases import Releases
from llmgw.server.upgrades.upgrades import Upgrades
from tests.server.test_metrics import Forgetful
from tests.server.test_registrations import recorded


@pytest.mark.parametrize("how", ["removed", "revoked"])
@pytest.mark.parametrize("call", ["register", "poll", "report", "renew", "release"])
def test_a_message_that_ends_after_its_sender_was_refused_is_refused(tmp_path: Path, call: str, how: str) -> None:
    pki = tmp_path / "pki"
    issued = time.time() - 60
    authority = Authority.create(pki, permit_ip=["127.0.0.0/8"], now=issued)
    pem = authority.issue_client("node01", "127.0.0.11", issued).cert_pem.encode()
    der = load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    removed: dict[str, float] = {}
    hub = Hub(
        epoch="e1",
        catalog=Catalog(),
        settings=FleetSettings(),
        clock=Clock(monotonic=time.monotonic, wall=time.time),
        ids=RandomIds(),
        memory=Forgetful(),  # type: ignore[arg-type]
        publish=lambda table: None,
    )
    store: Any = None
    app = AgentsApi(
        hub,
        clock=hub.clock,
        upgrades=Upgrades(hub, store, Releases(tmp_path), release_key=tmp_path / "none.pub"),
        revocations=RevocationList(pki / REVOKED, pki / "ca.pem"),
        renewer=Renewer.from_files(pki / "renewal.pem", pki / "renewal-key.pem"),
        server_version="0.2.4",
        removed_at=removed.get,
    ).app()

    async def proven(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = {"tls": {"client_cert_der": der}}
        await app(scope, receive, send)

    async def slowly() -> AsyncIterator[bytes]:
        whole = httpx.Request("POST", "http://x", json=recorded("older")).content
        yield whole[:10]
        if how == "removed":
            removed["node01"] = time.time()
        else:
            authority.revoke("node01", time.time())
        yield whole[10:]

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(proven), base_url="http://x") as client:
            return await client.post(f"/agent/v1/{call}", content=slowly())

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["code"]) == (403, how), answer.text
    assert "node01" not in hub.fleet.nodes
