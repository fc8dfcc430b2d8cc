"""What every engine adapter answers. Adapters are pure: they read a spec and node facts and write a plan.

The supervisor (in `agent/`) starts what the plan says and knows no engine by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from llmgw.config.agent import AgentConfig
from llmgw.engines.figures import FigureNames
from llmgw.messages.agent import Gpu, Rendezvous, ShardSpec


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """What the node adds to a spec.

    `address` is the node's management address (engines listen there and nowhere else), `gpus` are the shard's
    GPUs in the spec's order, `adapters` the usable ports of the shard's fabric as `mlx5_0:1`, `work_dir` the
    folder that the shard's processes run in and that the plan's files lie in. `gid_indexes` says which entry of
    its GID table each RoCE port among `adapters` should use (None: it has none that others reach); those of
    InfiniBand are not in it. `http_port` is set on rank 0. `rendezvous_host`/`rendezvous_port` are where
    the leader waits for workers: on rank 0 its own, on workers the leader's; None on replicas of one node.
    `extra_ports` are the free ports of the range that `EngineAdapter.extra_ports` asked for. `model_path` is
    where the agent put a source that it fetched (None: the source is the engine's to find). `api_key` is the key
    that the engine demands of whoever talks to it (rank 0 only; None: it demands none).
    `base_env` is the agent's own environment, of which adapters pass on only what engines need.
    """

    config: AgentConfig
    address: str
    gpus: list[Gpu]
    work_dir: str
    adapters: list[str] = field(default_factory=list)
    gid_indexes: dict[str, int | None] = field(default_factory=dict)
    mgmt_interface: str | None = None
    http_port: int | None = None
    rendezvous_host: str | None = None
    rendezvous_port: int | None = None
    extra_ports: list[int] = field(default_factory=list)
    model_path: str | None = None
    api_key: str | None = field(default=None, repr=False)
    base_env: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """One process: its name (also of its log file), command line and whole environment, which may hold secrets.

    With `waits_for` it is started once that port takes connections: the process before it opens it.
    """

    name: str
    argv: list[str]
    env: dict[str, str] = field(repr=False)
    waits_for: Rendezvous | None = None


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A file that must be there before anything starts; 0600, since it may carry a secret. `path` is absolute."""

    path: str
    content: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class HttpCheck:
    """A request and what proves success: any 2xx answer whose body is JSON that holds something and no `error`.

    `headers` may carry the engine's key, and stay out of what is printed.
    """

    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 10.0


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """How a shard runs.

    `sidecars` start before the engine, in order. `readiness` is None for workers, which serve nothing and are
    ready when their process runs (their leader answers for them). `load` is the cheap check that is polled
    while the engine loads (refused connections and 503 mean "still loading"); when it succeeds, `readiness`
    (the one-token request) decides. `files` are written before anything starts. `warnings` are sentences about
    what runs but is not what it seems, such as a profile's argument that contradicts ours.
    """

    engine: ProcessPlan
    sidecars: list[ProcessPlan] = field(default_factory=list)
    load: HttpCheck | None = None
    readiness: HttpCheck | None = None
    files: list[PlanFile] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class EngineAdapter(Protocol):
    """One engine. `name` is the catalog's word for it.

    `progress_counters` are the metrics in its `/metrics` whose sum grows while it works, also in the middle of a
    request: they tell busy from hung. `figures` are those that tell of its load. `takes_key` is True when the
    engine takes the key that it demands by its environment or a file: a command line is read by everyone on the
    node.
    """

    name: str
    progress_counters: tuple[str, ...]
    figures: FigureNames
    takes_key: bool

    def offered(self, config: AgentConfig) -> bool:
        """True when this node is configured to run the engine."""
        ...

    def program(self, config: AgentConfig) -> str:
        """The program that must exist and be executable, as configured (a name or a path)."""
        ...

    def extra_ports(self, spec: ShardSpec, config: AgentConfig) -> int:
        """How many ports of the node's range this shard needs beside those for HTTP and rendezvous."""
        ...

    def problems(self, spec: ShardSpec, context: LaunchContext) -> list[str]:
        """Sentences that say why this spec cannot run here; empty when it can. Touches no disk."""
        ...

    def plan(self, spec: ShardSpec, context: LaunchContext) -> LaunchPlan:
        """Command lines, environments, and how readiness is seen. Only called when `problems` is empty."""
        ...


# Environment variables of the agent that an engine may inherit; everything else is the profile's to set.
INHERITED_ENV = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "XDG_CACHE_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    # Where models come from: the hub, its mirror, its token, and the proxy on the way there.
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HUB_OFFLINE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)


def inherited_env(base: dict[str, str]) -> dict[str, str]:
    """The part of the agent's environment that engines get."""
    return {key: base[key] for key in INHERITED_ENV if key in base}
