"""A healthy node to plant faults in: an authority, hardware, files, and the agents' endpoint of a server."""

from __future__ import annotations

import asyncio
import os
import pwd
import sys
import threading
import time
from pathlib import Path
from typing import Any

from llmgw.config.agent import AgentConfig
from llmgw.config.server import AgentsTls
from llmgw.doctor.check import Node
from llmgw.pki.authority import Authority
from llmgw.pki.handout import write_files
from llmgw.pki.revocation import RevocationList
from llmgw.pki.tls import agents_server_context
from llmgw.server.agents_api import AgentsApi
from llmgw.server.asgi import serve_asgi
from llmgw.server.call_tally import CallTally
from llmgw.server.hub_error import HubError
from llmgw.server.peer_protocol import PeerHttpToolsProtocol
from llmgw.server.seams import Clock
from llmgw.sim.hardware import SimulatedHardware, write_hardware
from tests.hardware.nodes import write_program

DAY = 86400.0
OWN_USER = pwd.getpwuid(os.geteuid()).pw_name


class _NoSessions:
    """A hub as an agent meets it that has not registered."""

    def __init__(self) -> None:
        self.calls = CallTally()

    def node_of(self, session: str) -> str:
        raise HubError(410, "session", f"there is no session {session}")


class Site:
    """Everything below one folder. `config(key=…)` is the agent's configuration, with changes at the top."""

    def __init__(self, folder: Path, *, server_hosts: tuple[str, ...] = ("127.0.0.1",)) -> None:
        self.folder = folder
        self.now = time.time()
        self.authority = Authority.create(folder / "pki", now=self.now - 1000 * DAY, days=3650)
        self.hardware = write_hardware(folder / "hardware", gpus=8, adapters=2, node="node01")
        self.tls = self.issue("node01", "127.0.0.1")
        server = write_files(self.authority.issue_server(list(server_hosts), self.now), folder / "server")
        tls = AgentsTls(**server, revocations=str(self.authority.revocations_path))
        self._tls, self._ready = tls, threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        assert self._ready.wait(10)

    def issue(
        self, node: str, address: str | None, *, age_days: float = 0.0, days: float = 365
    ) -> dict[str, str]:
        issued = self.authority.issue_client(node, address, self.now - age_days * DAY, days=days)
        return write_files(issued, self.folder / f"tls-{node}-{address}-{age_days:g}".replace(":", "_"))

    def facts(self, **changes: Any) -> dict[str, Any]:
        """`agent.yaml` as plain data."""
        facts: dict[str, Any] = {
            "node_id": "node01",
            "server": f"https://127.0.0.1:{self.port}",
            "tls": self.tls,
            "mgmt_addr": "127.0.0.1",
            "fabrics": [{"name": "ib-a", "hcas": ["mlx5_0", "mlx5_1"], "rate_gbps": 400}],
            "discovery": self.discovery(self.hardware),
            "engines": {"sim": {"enabled": True}, "llamacpp": {"bin": sys.executable}},
            "supervisor": {"work_dir": str(self.folder / "work"), "engine_user": OWN_USER},
        }
        return facts | changes

    def discovery(self, hardware: SimulatedHardware) -> dict[str, str]:
        """`discovery` of a node with this hardware, on which infiniband-diags are installed."""
        tools = {name: str(write_program(self.folder / name, "exit 0")) for name in ("ibnetdiscover", "saquery")}
        return {"nvidia_smi": str(hardware.nvidia_smi), "ib_root": str(hardware.ib_root), **tools}

    def config(self, **changes: Any) -> AgentConfig:
        return AgentConfig.model_validate(self.facts(**changes))

    def node(self, *, clock_s: float = 0.0, **changes: Any) -> Node:
        """The node, whose clock is `clock_s` ahead."""
        return Node(self.config(**changes), lambda: time.time() + clock_s)

    async def _serve(self) -> None:
        api = AgentsApi(
            _NoSessions(),  # type: ignore[arg-type]  # nothing that doctor asks gets further into the hub
            clock=Clock(time.monotonic, time.time),
            revocations=RevocationList(str(self._tls.revocations), self._tls.ca),
            renewer=None,
            server_version="1",
            upgrades=None,  # type: ignore[arg-type]  # nor this far
        )
        server, sockets = serve_asgi(
            api.app(),
            "127.0.0.1:0",
            ssl_context=agents_server_context(self._tls),
            http=PeerHttpToolsProtocol,
        )
        self.port = sockets[0].getsockname()[1]
        serving = server.start(sockets)
        await server.wait_started()
        self._ready.set()
        await serving
