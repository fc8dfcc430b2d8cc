"""Nodes of the tests' own: they speak the agents' protocol over their own certificates, and answer as told."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from llmgw import __version__
from llmgw.config.agent import AgentTls
from llmgw.pki.authority import Authority
from llmgw.pki.handout import write_files
from llmgw.pki.tls import agent_context
from tests.endtoend.servers import Server, server
from tests.ports import free_port

Said = dict[str, Any] | str
"""An answer: the tool's output, or fields of the message."""


def port(adapter: str, guid: int, **changes: Any) -> dict[str, Any]:
    """An InfiniBand port that is up."""
    text = f"{guid:016x}"
    colons = ":".join(text[at : at + 4] for at in range(0, 16, 4))
    return {
        "adapter": adapter,
        "port": 1,
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "rate_gbps": 400.0,
        "sm_lid": 1,
        "node_guid": colons,
        "port_guid": colons,
        **changes,
    }


class FabricNode:
    """One node. `answers` maps `managers` and `map` to what is said; it may be changed at any time."""

    def __init__(
        self, agents: str, files: dict[str, str], node_id: str, fabric: str, ports: list[dict[str, Any]]
    ) -> None:
        self.node_id = node_id
        self.fabric = fabric
        self.ports = ports
        self.features = ["fabric_tools"]
        self.answers: dict[str, Said | Callable[[], Said]] = {}
        self.asked: list[tuple[str, str]] = []
        self._agents = agents
        self._tls = AgentTls(**files)
        self._stop = threading.Event()
        self._session = ""
        self._counter = 0
        self._client = self._new_client()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Say nothing more; a poll that waits ends with the server."""
        self._stop.set()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join(15)
        self._client.close()

    def heartbeat(self) -> None:
        """Report the ports as they are now."""
        self._say("report", {"session": self._session, "inventory": self._inventory()})

    def _new_client(self) -> httpx.Client:
        return httpx.Client(
            base_url=self._agents, verify=agent_context(self._tls), trust_env=False, timeout=httpx.Timeout(40)
        )

    def _inventory(self) -> dict[str, Any]:
        usable = all(one["state"] == "ACTIVE" for one in self.ports)
        offer = {
            "name": self.fabric,
            "usable": usable,
            "adapters": [f"{one['adapter']}:{one['port']}" for one in self.ports] if usable else [],
            "reason": None if usable else "a port is not up",
            "rate_gbps": 400.0,
        }
        gpus = [{"index": 0, "uuid": f"GPU-{self.node_id}", "name": "x"}]
        return {"gpus": gpus, "ports": self.ports, "fabrics": [offer]}

    def _say(self, call: str, body: Any) -> Any:
        answer = self._client.post(f"/agent/v1/{call}", json=body)
        answer.raise_for_status()
        return answer.json()

    def _live(self) -> None:
        while not self._stop.is_set():
            try:
                self._register()
                self._serve()
            except (httpx.HTTPError, RuntimeError):
                if self._stop.wait(0.2):
                    return

    def _register(self) -> None:
        self._counter += 1
        self._session = self._say(
            "register",
            {
                "node_id": self.node_id,
                "boot_id": "boot",
                "instance": "one",
                "instance_started_at": 1.0,
                "counter": self._counter,
                "version": __version__,
                "features": self.features,
                "inventory": self._inventory(),
            },
        )["session"]

    def _serve(self) -> None:
        acked = 0
        while not self._stop.is_set():
            for command in self._say("poll", {"session": self._session, "acked": acked})["commands"]:
                acked = max(acked, command["seq"])
                if command["type"] == "ask_fabric":
                    self._answer(command)

    def _answer(self, command: dict[str, Any]) -> None:
        self.asked.append((command["what"], f"{command['adapter']}:{command['port']}"))
        said = self.answers[command["what"]]
        said = said() if callable(said) else said
        fields = {"output": said, "exit_code": 0} if isinstance(said, str) else dict(said)
        output = fields.pop("output", "")
        packed = output if isinstance(output, bytes) else zlib.compress(output.encode(), 1)
        text = {"request_id": command["request_id"], "output": base64.b64encode(packed).decode(), **fields}
        self._say("report", {"session": self._session, "fabrics": [text]})


class FabricWorld:
    """A server, and nodes that are enrolled with it."""

    def __init__(self, running: Server, agents: str, authority: Authority, folder: Path) -> None:
        self.server = running
        self._agents, self._authority, self._folder = agents, authority, folder
        self._nodes: list[FabricNode] = []

    def node(self, node_id: str, fabric: str, ports: list[dict[str, Any]]) -> FabricNode:
        address = f"127.0.0.{30 + len(self._nodes)}"
        issued = self._authority.issue_client(node_id, address, time.time())
        made = FabricNode(self._agents, write_files(issued, self._folder / node_id), node_id, fabric, ports)
        self._nodes.append(made)
        return made

    def fabric(self, name: str) -> dict[str, Any]:
        found = [view for view in self.server.get("fabrics") if view["name"] == name]
        return found[0] if found else {}

    def stop(self) -> None:
        for node in self._nodes:
            node.stop()

    def join(self) -> None:
        for node in self._nodes:
            node.join()


@contextlib.contextmanager
def fabric_world(folder: Path, **changes: Any) -> Iterator[FabricWorld]:
    """A server that asks often, without nodes yet."""
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    authority = Authority.create(folder / "pki", permit_dns=["localhost"], permit_ip=["127.0.0.0/8"], now=now)
    tls = write_files(authority.issue_server(["127.0.0.1"], now), folder / "server-tls")
    listen = f"127.0.0.1:{free_port()}"
    settings = {
        "agents": {"listen": listen, "tls": tls},
        "fabrics": {"managers_interval": "300ms", "map_interval": "1s"},
        "liveness": {"settle": "0s"},
        **changes,
    }
    with contextlib.ExitStack() as after, server(folder / "server", **settings) as running:
        world = FabricWorld(running, f"https://{listen}", authority, folder)
        after.callback(world.join)
        try:
            yield world
        finally:
            world.stop()
