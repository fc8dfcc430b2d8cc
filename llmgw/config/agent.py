"""`agent.yaml`: one node's agent. Keys and defaults as operators know them."""

from __future__ import annotations

import ipaddress
import os.path
import re
import socket
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from llmgw.config.agent_metrics import MetricsEndpoint
from llmgw.config.base import Duration, Model, Size
from llmgw.config.errors import KeyedError
from llmgw.messages.agent import NODE_ID_PATTERN

DEFAULT_ENGINE_USER = "llmgw-engine"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")


class AgentTls(Model):
    """Where the agent's own certificate and the authority's root lie."""

    ca: str = "/etc/llmgw/ca.pem"
    """The authority's root certificate."""
    cert: str = "/etc/llmgw/agent.pem"
    """This node's certificate; its common name is the node id."""
    key: str = "/etc/llmgw/agent-key.pem"
    """The certificate's private key, readable only by its owner (0600)."""


class FabricDeclaration(Model):
    """A fabric's name and the adapters of this node that are cabled to it."""

    name: str
    """What operators call the fabric; the same name on every node that is cabled to it."""
    hcas: list[str] = Field(default_factory=lambda: ["mlx5_0", "mlx5_1"], min_length=1, max_length=32)
    """Adapters by name; `mlx5_0:1` names one port."""
    rate_gbps: float | None = Field(None, gt=0, le=10000)
    """What the links should run at; a slower one is a finding. Default: not checked."""

    @field_validator("name")
    @classmethod
    def _fabric_name(cls, value: str) -> str:
        if not _NAME.match(value):
            raise ValueError(f"{value!r} is not a fabric name; use letters, digits, '.', '_' and '-'")
        return value

    @field_validator("hcas")
    @classmethod
    def _hcas(cls, value: list[str]) -> list[str]:
        for index, hca in enumerate(value):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}(:[1-9][0-9]{0,2})?", hca):
                raise KeyedError(f"{hca!r} is not an adapter name; write for example mlx5_0 or mlx5_0:1", index)
        if len(set(value)) != len(value):
            raise ValueError(f"hcas names an adapter twice: {', '.join(value)}")
        return value


class Discovery(Model):
    """How GPUs and adapters are found."""

    nvidia_smi: str = "nvidia-smi"
    """The program, by name or path."""
    ib_root: str = "/sys/class/infiniband"
    """The folder with one folder an adapter."""
    prefer_nvml: bool = True
    """Ask the NVML library first. Not used when `nvidia_smi` names a path of its own."""
    ibnetdiscover: str = "ibnetdiscover"
    """The program that maps a fabric (infiniband-diags), by name or path."""
    saquery: str = "saquery"
    """The program that asks a fabric for its subnet managers (infiniband-diags), by name or path."""
    ib_write_bw: str = "ib_write_bw"
    """The program that measures bandwidth between two nodes (perftest), by name or path."""
    skip_gpus: list[int | str] = Field(default_factory=list)
    """GPUs by index or UUID that llmgw never uses."""

    @field_validator("skip_gpus", mode="before")
    @classmethod
    def _numbers_are_indexes(cls, value: object) -> object:
        # The loader hands scalars over as text; `0` is an index all the same.
        if not isinstance(value, list):
            return value
        return [int(gpu) if isinstance(gpu, str) and re.fullmatch(r"[0-9]{1,3}", gpu) else gpu for gpu in value]


class LlamacppEngine(Model):
    """llama.cpp's `llama-server`."""

    bin: str = "llama-server"
    """The program, by name or path."""
    parallel: int = Field(4, ge=1, le=1024)
    """Requests that one server works on at a time."""


class VllmEngine(Model):
    """vLLM's `vllm` program."""

    bin: str = "vllm"
    """The program, by name or path."""
    launch_mode: Literal["mp", "ray"] = "mp"
    """How replicas of several nodes start. Ray runs anyone's code, so it is opted into."""


class SglangEngine(Model):
    """The Python that has SGLang installed."""

    python: str = "python3"
    """The interpreter, by name or path."""


class SimEngine(Model):
    """The simulated engine, which needs no GPU. Off unless it is asked for."""

    enabled: bool = False
    """Run simulated engines on this node."""


class Engines(Model):
    """The engines that this node may run. One that is left out is not run here."""

    llamacpp: LlamacppEngine | None = None
    """llama.cpp. Left out: not on this node; `{}` is all its defaults."""
    vllm: VllmEngine | None = None
    """vLLM. Left out: not on this node; `{}` is all its defaults."""
    sglang: SglangEngine | None = None
    """SGLang. Left out: not on this node; `{}` is all its defaults."""
    sim: SimEngine = SimEngine()
    """The simulated engine, for trials and tests."""


class Supervisor(Model):
    """How engines are kept."""

    work_dir: str = "/var/lib/llmgw-agent"
    """One folder a shard below it: spec, output, and what the engine writes."""
    log_lines: int = Field(512, ge=10, le=100_000)
    """Lines of an engine's output kept in memory and sent with a failure."""
    stop_timeout: Duration = 60.0
    """Between SIGTERM and SIGKILL."""
    health_interval: Duration = Field(2.0, gt=0)
    """Between readiness checks."""
    port_range: str = "21000-21999"
    """Ports for engines and rendezvous, on the management address."""
    engine_user: str | None = None
    """The user that engines run as when the agent is root, with the groups that own GPUs and adapters.
    Default: `llmgw-engine` where that user exists, else the agent's own; `root` keeps them root's."""

    @field_validator("engine_user")
    @classmethod
    def _engine_user(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?", value):
            raise ValueError(f"{value!r} is not the name of a user; write for example llmgw-engine")
        return value

    @field_validator("port_range")
    @classmethod
    def _ports(cls, value: str) -> str:
        match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)
        if not match or not 1024 <= int(match[1]) < int(match[2]) <= 65535:
            raise ValueError(f"{value!r} is not a range of ports like 21000-21999, from 1024 to 65535")
        return value

    @property
    def ports(self) -> range:
        """The range as numbers, both ends included."""
        low, high = self.port_range.split("-")
        return range(int(low), int(high) + 1)


class Weights(Model):
    """Where models that are given by a URL are fetched to, and how."""

    dir: str | None = None
    """The folder for fetched files; a local, fast disk. Default: `weights` below `supervisor.work_dir`."""
    reserve: Size = 2 * 2**30
    """What a download leaves free on the disk of that folder."""
    bandwidth_limit: Size | None = Field(None, ge=2**16)
    """Bytes per second that all downloads of this node take together, such as `100MB`. Default: no limit."""
    ca: str | None = None
    """An authority (PEM) that is believed beside the system's when files are fetched over https."""
    token_files: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Host (`huggingface.co`, `models.local:8443`) → a file whose first line is sent to it as
    `Authorization: Bearer …`, over https only (or to this machine). Others must not be able to read it (0600)."""

    @field_validator("token_files")
    @classmethod
    def _hosts(cls, value: dict[str, str]) -> dict[str, str]:
        for host in value:
            if not re.fullmatch(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:]+\])(:\d{1,5})?", host):
                raise KeyedError(
                    f"{host[:80]!r} is not a host; write it in lower case and without https://, such as "
                    "huggingface.co or models.local:8443",
                    host,
                )
        return value


class AgentConfig(Model):
    """One node's agent."""

    node_id: str = Field(default_factory=lambda: socket.gethostname().lower())
    """The node's name, which its certificate carries too. Default: the host name."""
    server: str
    """The agents' endpoint, `https://host:port`."""
    tls: AgentTls = AgentTls()
    """The files that prove who this node is."""
    mgmt_addr: str | None = None
    """The node's address, on which engines listen. Default: that of `mgmt_interface`, else the one that
    reaches the server."""
    mgmt_interface: str | None = None
    """The network interface between the nodes and the server, such as `eno1`; its address is taken."""
    heartbeat_interval: Duration = Field(5.0, ge=0.05)
    """How often GPUs, ports and shards are read and reported."""
    reconnect_base: Duration = Field(1.0, gt=0)
    """The first wait before dialling a server that did not answer; it doubles each time."""
    reconnect_max: Duration = Field(30.0, gt=0)
    """The longest such wait. The agent dials for ever."""
    fabrics: list[FabricDeclaration] = Field(default_factory=list, max_length=16)
    """The fabrics that this node is cabled to. Without any it hosts replicas of one node only."""
    discovery: Discovery = Discovery()
    """How GPUs and adapters are found."""
    engines: Engines = Engines()
    """The engines that this node may run."""
    supervisor: Supervisor = Supervisor()
    """How engines are kept."""
    weights: Weights = Weights()
    """Where models that are given by a URL are fetched to, and how."""
    metrics: MetricsEndpoint | None = None
    """The agent's own `/metrics`. Left out: there is none; the server's tell of this node."""
    release_key: str = "/etc/llmgw/release.pub"
    """The public key (Ed25519, PEM) that a release must be signed with before this agent becomes it
    (`llmgw ctl upgrade`). Without the file the agent takes no release."""
    oldest_release: str | None = Field(None, pattern=r"^[0-9]+(\.[0-9]+)*$", max_length=32)
    """A version such as `1.3.0`: an older release is never taken, also not with `--allow-downgrade`. Old releases
    are signed too, and whoever has got hold of the server could ask for one with a known weakness."""

    @property
    def weights_dir(self) -> str:
        """`weights.dir`, or its default below the work dir."""
        return self.weights.dir or os.path.join(self.supervisor.work_dir, "weights")

    @field_validator("node_id")
    @classmethod
    def _node_id(cls, value: str) -> str:
        if not re.fullmatch(NODE_ID_PATTERN, value):
            raise ValueError(
                f"{value!r} is not a node id; it is the host name: lower-case letters, digits, '-' and '.', "
                "beginning and ending with a letter or digit, at most 63"
            )
        return value

    @field_validator("server")
    @classmethod
    def _server(cls, value: str) -> str:
        parts = urlsplit(value)
        try:
            parts.port  # noqa: B018 - reading it raises for ports that are none
        except ValueError:
            raise ValueError(
                f"{value!r} has no port from 0 to 65535; write for example https://gateway:8443"
            ) from None
        if parts.scheme != "https" or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(f"{value!r} is not an address like https://gateway.example.org:8443")
        return value.rstrip("/")

    @field_validator("mgmt_addr")
    @classmethod
    def _mgmt_addr(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            raise ValueError(f"{value!r} is not an IP address; write for example 10.0.0.11") from None
        if address.is_unspecified or address.is_multicast or address.is_link_local:
            raise ValueError(f"{value!r} is not an address that other nodes can reach; use a unicast address")
        return str(address)

    @model_validator(mode="after")
    def _one_fabric_per_adapter(self) -> AgentConfig:
        owner: dict[str, str] = {}
        names: set[str] = set()
        for at, fabric in enumerate(self.fabrics):
            if fabric.name in names:
                raise KeyedError(
                    f"fabric {fabric.name!r} is declared twice; merge its hcas", "fabrics", at, "name"
                )
            names.add(fabric.name)
            for index, hca in enumerate(fabric.hcas):
                adapter = hca.partition(":")[0]
                for other, other_fabric in owner.items():
                    # `mlx5_0` is every port of the adapter; `mlx5_0:1` and `mlx5_0:2` may part.
                    whole = ":" not in other or ":" not in hca
                    shared = other == hca or (whole and other.partition(":")[0] == adapter)
                    if shared and other_fabric != fabric.name:
                        named = f"adapter {adapter}" if whole else f"port {hca}"
                        raise KeyedError(
                            f"{named} is under two fabrics, {other_fabric!r} and {fabric.name!r}; it is cabled "
                            "to one, remove it from the other",
                            *("fabrics", at, "hcas", index),
                        )
                owner[hca] = fabric.name
        if self.reconnect_max < self.reconnect_base:
            raise KeyedError("must not be below reconnect_base; raise it", "reconnect_max")
        return self
