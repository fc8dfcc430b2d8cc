"""A server takes agents one minor version older and newer, and says to others what is to be done."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate
from starlette.types import ASGIApp, Receive, Scope, Send

from llmgw.config.catalog import Catalog
from llmgw.fleet.model import Node
from llmgw.fleet.settings import FleetSettings
from llmgw.pki.authority import Authority
from llmgw.server.agents_api import AgentsApi
from llmgw.server.hub import Clock, Hub
from llmgw.server.ids import RandomIds
from llmgw.server.upgrades.releases import Releases
from llmgw.server.upgrades.upgrades import Upgrades
from tests.server.test_metrics import Forgetful

RECORDED = Path(__file__).parent / "registrations"
SERVER = "0.2.4"


class Kept(Forgetful):
    """Knows which registrations were asked to be kept, and which of them somebody waited for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.stored_of: list[str] = []
        self.stores = True

    def node_registered(self, node: Node, *_: Any) -> None:
        self.asked.append(node.node_id)

    async def stored(self, timeout_s: float) -> bool:
        await asyncio.sleep(0)
        self.stored_of, self.asked = [*self.stored_of, *self.asked], []
        return self.stores


class Endpoint:
    """The agents' endpoint of a server of version SERVER, as node01 reaches it."""

    def __init__(self, folder: Path) -> None:
        self.memory = Kept()
        self.hub = Hub(
            epoch="e1",
            catalog=Catalog(),
            settings=FleetSettings(),
            clock=Clock(monotonic=time.monotonic, wall=time.time),
            ids=RandomIds(),
            memory=self.memory,
            publish=lambda table: None,
        )
        store: Any = None
        upgrades = Upgrades(self.hub, store, Releases(folder), release_key=folder / "none.pub")
        api = AgentsApi(
            self.hub,
            clock=self.hub.clock,
            upgrades=upgrades,
            revocations=None,
            renewer=None,
            server_version=SERVER,
        )
        self._app = api.app()
        authority = Authority.create(folder / "pki", name="test", now=time.time())
        pem = authority.issue_client("node01", "127.0.0.11", time.time()).cert_pem.encode()
        self._der = load_pem_x509_certificate(pem).public_bytes(Encoding.DER)

    def register(self, message: dict[str, Any]) -> httpx.Response:
        app: ASGIApp = self._app

        async def proven(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {"tls": {"client_cert_der": self._der}}
            await app(scope, receive, send)

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(proven)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.post("/agent/v1/register", json=message)

        return asyncio.run(ask())


@pytest.fixture
def endpoint(tmp_path: Path) -> Endpoint:
    return Endpoint(tmp_path)


def recorded(name: str, **changes: Any) -> dict[str, Any]:
    return json.loads((RECORDED / f"{name}.json").read_text()) | changes


@pytest.mark.parametrize(("name", "version"), [("older", "0.1.0"), ("newer", "0.3.0")])
def test_the_registration_of_another_minor_version_is_taken_whole(
    endpoint: Endpoint, name: str, version: str
) -> None:
    answer = endpoint.register(recorded(name))
    assert answer.status_code == 200, answer.text
    node = endpoint.hub.fleet.nodes["node01"]
    assert node.version == version
    assert len(node.gpus) == 8
    # What runs there is known as it runs: the catalog is empty here, so that it is disowned and not lost.
    held = [shard["spec"]["shard_id"] for shard in recorded(name)["held"]]
    assert (
        sorted({*node.disowned, *(shard.shard_id for _, shard in endpoint.hub.fleet.shards_on("node01"))}) == held
    )
    assert (node.last_upgrade is not None) == (name == "newer")


def test_a_registration_is_answered_when_it_is_stored_so_that_no_kill_forgets_it(endpoint: Endpoint) -> None:
    assert endpoint.register(recorded("older")).status_code == 200
    assert (endpoint.memory.asked, endpoint.memory.stored_of) == ([], ["node01"])
    # A disk that takes nothing keeps no agent out.
    endpoint.memory.stores = False
    assert endpoint.register(recorded("older", counter=9)).status_code == 200


@pytest.mark.parametrize("version", ["0.0.9", "0.4.0", "2.0.0", "yesterday's"])
def test_a_version_further_away_is_refused_with_a_sentence_and_found_on_its_node(
    endpoint: Endpoint, version: str
) -> None:
    assert endpoint.register(recorded("older")).status_code == 200
    answer = endpoint.register(recorded("older", version=version, counter=2))
    assert (answer.status_code, answer.json()["code"]) == (409, "version")
    sentence = answer.json()["message"]
    assert re.search(
        rf"agent of node01 (is llmgw {version} and this server is {SERVER}|says a version)", sentence
    )
    node = endpoint.hub.fleet.nodes["node01"]
    assert node.version == "0.1.0"
    assert [f.what for f in endpoint.hub.node_findings(node) if f.check == "agent-version"] == [sentence]
    assert endpoint.register(recorded("older", counter=3)).status_code == 200
    assert not [f for f in endpoint.hub.node_findings(node) if f.check == "agent-version"]
