"""What a demo's fleet is made from: its options, certificates, simulated hardware and configuration files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llmgw.config.addresses import join_host_port
from llmgw.pki.authority import Authority
from llmgw.sim.fabric.live import write_fabric
from llmgw.sim.fabric.plan import plan_fabric
from llmgw.sim.fabric.programs import write_tools
from llmgw.sim.hardware import write_hardware
from llmgw.sim.hardware_adapters import adapter_name

NODES: dict[str, tuple[str, str]] = {
    "node01": ("127.0.0.11", "ib-a"),
    "node02": ("127.0.0.12", "ib-a"),
    "node03": ("127.0.0.13", "ib-b"),
    "node04": ("127.0.0.14", "ib-b"),
}
"""Node → (address, fabric). Each node has a loopback address of its own, so that ports never collide; a second
demo on this machine has them in another 127.0.N."""

ADAPTERS = 2
"""Of each node, both on its fabric."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What may be chosen."""

    load_s: float = 5.0
    """How long a simulated engine loads."""
    tokens_per_s: float = 40.0
    settle_s: float = 2.0
    gguf: Path | None = None
    llama_server: str | None = None
    keep: bool = False
    """Keep the folder when the demo ends."""
    folder: Path | None = None
    replicas_big: int = 2
    replicas_small: int = 2
    api_port: int = 8080
    admin_port: int = 8081
    agents_port: int = 8443
    host: str = "127.0.0.1"
    """The loopback address that the server listens on."""
    liveness: dict[str, str] = field(default_factory=dict)
    """Keys of `liveness` in server.yaml beside `settle`."""
    fabrics: dict[str, str] = field(default_factory=lambda: {"managers_interval": "5s", "map_interval": "15s"})
    """Keys of `fabrics` in server.yaml: what is done to a simulated fabric shows soon."""
    first_byte_timeout: str = "10m"
    chunk_timeout: str = "5m"
    routers: int | None = None
    """Router processes; None: as many as the server takes for this machine."""
    nodes: dict[str, tuple[str, str]] = field(default_factory=lambda: dict(NODES))
    """Node → (address, fabric), before a running demo's addresses are stepped around."""


def write_fabrics(folder: Path, nodes: Mapping[str, tuple[str, str]]) -> None:
    """Write each fabric's file: node → (address, fabric). One cable of the first fabric trains too slowly."""
    names = sorted({fabric for _, fabric in nodes.values()})
    for name in names:
        members = [node for node, (_, fabric) in nodes.items() if fabric == name]
        fabric = plan_fabric(
            name,
            {node: [adapter_name(index) for index in range(ADAPTERS)] for node in members},
            {node: str(folder / node / "hardware") for node in members},
            slow=name == names[0],
        )
        write_fabric(folder / "fabrics" / f"{name}.json", fabric)


def write_node(
    options: DemoOptions, authority: Authority, home: Path, server: str, address: str, fabric: str, now: float
) -> None:
    """Write a node's hardware, tools, certificate and agent.yaml into its folder, which has the node's name."""
    node = home.name
    home.mkdir()
    hardware = write_hardware(home / "hardware", gpus=8, adapters=ADAPTERS, rate_gbps=400, node=node)
    tools = write_tools(hardware.directory, home.parent / "fabrics" / f"{fabric}.json", address)
    client = authority.issue_client(node, address, now)
    write_private(home / "ca.pem", authority.ca_pem)
    write_private(home / "agent.pem", client.cert_pem)
    write_private(home / "agent-key.pem", client.key_pem)
    engines: dict[str, Any] = {"sim": {"enabled": True}}
    if options.gguf is not None and node == "node04":
        engines["llamacpp"] = {"bin": options.llama_server or "llama-server", "parallel": 2}
    supervisor = {"work_dir": str(home / "work"), "stop_timeout": "5s", "health_interval": "500ms"}
    if os.geteuid() == 0:
        # A demo's folder is closed to others, also to a user that this machine has for engines.
        supervisor["engine_user"] = "root"
    config = {
        "node_id": node,
        "server": server,
        "tls": {
            "ca": str(home / "ca.pem"),
            "cert": str(home / "agent.pem"),
            "key": str(home / "agent-key.pem"),
        },
        "mgmt_addr": address,
        "heartbeat_interval": "2s",
        "reconnect_base": "250ms",
        "reconnect_max": "1s",
        "fabrics": [{"name": fabric, "hcas": hardware.adapters, "rate_gbps": 400}],
        "discovery": {
            "nvidia_smi": str(hardware.nvidia_smi),
            "ib_root": str(hardware.ib_root),
            **{tool: str(path) for tool, path in tools.items()},
        },
        "engines": engines,
        "supervisor": supervisor,
    }
    write_private(home / "agent.yaml", yaml.safe_dump(config, sort_keys=False))


def write_server_config(options: DemoOptions, folder: Path, ports: list[int]) -> None:
    """Write server.yaml for listeners on these three ports: model API, admin API, agents."""
    host = options.host
    args = ["--load-s", f"{options.load_s:g}", "--tokens-per-s", f"{options.tokens_per_s:g}"]
    models: list[dict[str, Any]] = [
        {
            "name": "demo/big",
            "aliases": ["big"],
            "first_byte_timeout": options.first_byte_timeout,
            "chunk_timeout": options.chunk_timeout,
            "profiles": [
                {
                    "engine": "sim",
                    "nodes": 2,
                    "gpus_per_node": 4,
                    "replicas": options.replicas_big,
                    "rendezvous_timeout": "30s",
                    "args": args,
                }
            ],
        },
        {
            "name": "demo/small",
            "aliases": ["small"],
            "first_byte_timeout": options.first_byte_timeout,
            "chunk_timeout": options.chunk_timeout,
            "profiles": [{"engine": "sim", "gpus_per_node": 1, "replicas": options.replicas_small, "args": args}],
        },
    ]
    if options.gguf is not None:
        models.append(
            {
                "name": "demo/gguf",
                "aliases": ["gguf"],
                "source": str(options.gguf.absolute()),
                "profiles": [{"engine": "llamacpp", "gpus_per_node": 0, "replicas": 1}],
            }
        )
    tls = {
        "ca": str(folder / "pki" / "ca.pem"),
        "cert": str(folder / "server.pem"),
        "key": str(folder / "server-key.pem"),
        "revocations": str(folder / "pki" / "revoked.pem"),
        "renewal_cert": str(folder / "renewal.pem"),
        "renewal_key": str(folder / "renewal-key.pem"),
    }
    config = {
        "listen": join_host_port(host, ports[0]),
        "admin": {"listen": join_host_port(host, ports[1])},
        "agents": {"listen": join_host_port(host, ports[2]), "tls": tls},
        "state": str(folder / "state"),
        "liveness": {"settle": f"{options.settle_s:g}s", **options.liveness},
        "router": {"drain_grace": "20s", **({"workers": options.routers} if options.routers else {})},
        "fabrics": options.fabrics,
        "models": models,
    }
    write_private(folder / "server.yaml", yaml.safe_dump(config, sort_keys=False))


def change_arguments(folder: Path, model: str, arguments: list[str]) -> None:
    """Add arguments to every profile of a model in server.yaml; the server reads it again on SIGHUP."""
    path = folder / "server.yaml"
    config = yaml.safe_load(path.read_text())
    for entry in config["models"]:
        if entry["name"] == model:
            for profile in entry["profiles"]:
                profile["args"] = [*profile["args"], *arguments]
    write_private(path, yaml.safe_dump(config, sort_keys=False))


def change_settle(folder: Path, settle_s: float) -> None:
    """How long the next server waits, at most, for the nodes that it knows."""
    path = folder / "server.yaml"
    config = yaml.safe_load(path.read_text())
    config["liveness"]["settle"] = f"{settle_s:g}s"
    write_private(path, yaml.safe_dump(config, sort_keys=False))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
