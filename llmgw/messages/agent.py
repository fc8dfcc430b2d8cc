"""What agents and the server say to each other over `/agent/v1/…` (JSON, mutual TLS).

Three calls: `register` says everything a node has and holds and answers with a session, `poll` waits for
commands and acknowledges earlier ones, `report` carries heartbeats and transitions. Unknown fields are
ignored on both sides, so that a newer peer may add some; what an older agent cannot answer is named in
`features` and refused at once.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from llmgw.messages.fabric import AskFabric, FabricText
from llmgw.messages.fabric_test import (
    BandwidthAnswer,
    EndBandwidth,
    MeasureBandwidth,
    PrepareBandwidth,
    ServeBandwidth,
)
from llmgw.messages.findings import Finding
from llmgw.messages.secrets import shown_without
from llmgw.messages.upgrade import LastUpgrade, Upgrade, UpgradeTold

# Sizes are bounded where they enter: a node with 10,000 GPUs is a mistake or an attack.
NODE_ID_PATTERN = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
GPUS_PER_NODE_MAX = 64
PORTS_PER_NODE_MAX = 128
GIDS_PER_PORT_MAX = 32
SHARDS_PER_NODE_MAX = 256
SHARDS_PER_REPLICA_MAX = 65_536
POLL_WAIT_S = 25.0
BODY_BYTES_MAX = 16 * 1024 * 1024
LOG_CHUNK_BYTES_MAX = 256 * 1024
STREAMS_MAX = 16
HELP_CHARS_MAX = 1024 * 1024
EXTRA_PORTS_MAX = 256
WEIGHTS_FILES_MAX = 2000
SOURCES_MAX = 1000

NodeId = Annotated[str, msgspec.Meta(pattern=NODE_ID_PATTERN)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
# What stands in tables, metrics and history as a name: nothing in it may draw on a terminal or begin a line.
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
HelpString = Annotated[str, msgspec.Meta(max_length=HELP_CHARS_MAX)]
TcpPort = Annotated[int, msgspec.Meta(ge=1, le=65535)]
FIGURE_MAX = 1_000_000_000
XIDS_PER_GPU_MAX = 16
THROTTLE_REASONS = ("power", "thermal", "hardware")
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# What a header can carry: it stands behind `Authorization: Bearer`.
EngineKey = Annotated[str, msgspec.Meta(min_length=16, max_length=256, pattern=r"^[!-~]+$")]

ShardPhase = Literal["fetching", "waiting", "starting", "ready", "stopping", "stopped", "failed"]
# Phases in which a shard's processes may hold GPUs. `stopped` and `failed` are said only when nothing is left.
LIVE_PHASES: frozenset[str] = frozenset({"fetching", "waiting", "starting", "ready", "stopping"})


class MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device that a GPU was cut into."""

    uuid: str = ""
    """`MIG-…`; empty where the driver's text does not say it."""
    profile: str | None = None
    """`3g.40gb`: how much of the GPU it is."""
    memory_total_mib: int | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as the driver describes it. `None` is unknown, never zero."""

    index: Int64
    uuid: str
    name: str
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    unified_memory: bool = False
    """True when it has no memory of its own: total and used are the machine's."""
    utilization_percent: int | None = None
    temperature_c: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    """The newest CUDA that the driver runs, `13.1`."""
    power_w: float | None = None
    power_limit_w: float | None = None
    corrected_ecc: int | None = None
    """Corrected memory errors since the driver was loaded."""
    uncorrected_ecc: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    throttled: Annotated[list[str], msgspec.Meta(max_length=8)] | None = None
    """What holds its clocks down, of `THROTTLE_REASONS`; empty: nothing."""
    xids: Annotated[dict[int, int], msgspec.Meta(max_length=XIDS_PER_GPU_MAX)] | None = None
    """Xid → how often the kernel's log has it for this GPU since the driver was loaded, as far as the log goes
    back; None where the log cannot be read."""
    mig: bool | None = None
    """True when the GPU is cut into MIG devices."""
    mig_devices: Annotated[list[MigDevice], msgspec.Meta(max_length=64)] = []
    paths: Annotated[dict[int, str], msgspec.Meta(max_length=GPUS_PER_NODE_MAX)] | None = None
    """Index of another GPU → how the two are joined, as `nvidia-smi topo -m` says: `NV18`, `PIX`, `SYS`."""
    nvswitch: bool | None = None
    """True when its NVLinks end at a switch, False when at other GPUs."""
    nearest_adapters: list[str] | None = None
    """The adapters on the shortest way from it, all that tie; empty: all are on another NUMA node."""
    usable: bool = True
    reason: str | None = None
    """Why it is not usable, as a sentence; None when it is."""
    unusable_kind: str | None = None
    """`broken`, `held` (others hold its memory) or `skipped` (by the configuration); None when it is usable, or
    its agent does not tell."""

    @property
    def nvlink_peers(self) -> list[int] | None:
        """Indexes of the GPUs that it has NVLinks with; empty is none, None is unknown."""
        if self.paths is None:
            return None
        return sorted(index for index, path in self.paths.items() if path.startswith("NV"))


class Gid(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a port's GID table that is in use."""

    index: Int64
    gid: str
    """Eight groups of four hexadecimal digits, as the kernel writes it."""
    type: str | None = None
    """`RoCE v2`, `IB/RoCE v1`: the words of `gid_attrs/types`."""
    netdev: str | None = None
    """The interface whose address it was made from (`gid_attrs/ndevs`)."""


# 5, ACTIVE_DEFER: the link is up and its physical layer recovers; traffic goes on (InfiniBand spec 1, 7.2.7).
_UP_STATES = frozenset({"ACTIVE", "ACTIVE_DEFER"})


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port of one InfiniBand or RoCE adapter, as sysfs tells it. `None` is unknown, never zero."""

    adapter: Label
    port: Int64
    link_layer: str | None = None
    """`InfiniBand`, `Ethernet` or what the kernel wrote."""
    state: str | None = None
    """`ACTIVE`, `INIT`, `ARMED`, `DOWN`: the word of `ports/N/state` without its number."""
    phys_state: str | None = None
    """`LinkUp`, `Polling`, `Disabled`, …: the word of `ports/N/phys_state`."""
    rate_gbps: float | None = None
    rate_text: str | None = None
    """`400 Gb/sec (4X NDR)`, as the kernel wrote it."""
    lid: int | None = None
    sm_lid: int | None = None
    node_guid: str | None = None
    port_guid: str | None = None
    pci_address: str | None = None
    """`0000:18:00.0`, of the adapter."""
    numa_node: int | None = None
    """Of the adapter; None also on machines without NUMA."""
    virtual: bool | None = None
    """True for a virtual function."""
    bond: str | None = None
    """The bond (`bond0`) that its interface is a part of, or that the adapter itself is of several cards."""
    pkeys: Annotated[list[int], msgspec.Meta(max_length=128)] | None = None
    """Partition keys in use, in the table's order, 0xffff for full membership of the default partition."""
    gids: Annotated[list[Gid], msgspec.Meta(max_length=GIDS_PER_PORT_MAX)] = []
    counters: dict[str, int | None] = {}

    @property
    def is_up(self) -> bool:
        """True while it carries traffic."""
        return self.state in _UP_STATES


class FabricOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What one node can do on one declared fabric. Not usable means not offered, and `reason` says why."""

    name: Label
    adapters: list[str] = []
    """Usable ports as NCCL names them, `mlx5_0:1`."""
    usable: bool = False
    reason: str | None = None
    """A sentence that names adapter, port and remedy; None when the fabric is usable without reservation."""
    rate_gbps: float | None = None
    """The slowest active link, in Gb/s."""


class EngineOffer(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that this node is configured to run; `problem` is a sentence when it cannot."""

    name: Label
    version: str | None = None
    problem: str | None = None


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a node has, read afresh for each registration and heartbeat."""

    gpus: Annotated[list[Gpu], msgspec.Meta(max_length=GPUS_PER_NODE_MAX)] = []
    ports: Annotated[list[Port], msgspec.Meta(max_length=PORTS_PER_NODE_MAX)] = []
    fabrics: Annotated[list[FabricOffer], msgspec.Meta(max_length=64)] = []
    engines: Annotated[list[EngineOffer], msgspec.Meta(max_length=16)] = []
    free_ports: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    """TCP ports of the node's range that a new shard could be given, counted up to 64. `None` is unknown."""
    port_range: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """`21000-21999`, both ends included."""
    findings: Annotated[list[Finding], msgspec.Meta(max_length=256)] = []


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """Where the leader of a replica waits for its workers."""

    host: str
    port: TcpPort


class ShardSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to run one shard, and to recognise it later. It is kept on the node's disk whole.

    `gpus` are UUIDs on this node. `rendezvous` is None for the leader (rank 0), whose agent chooses the
    ports and reports them, and set for workers. `profile_hash` tells an outdated form from the current one.
    """

    shard_id: Name
    replica_id: Name
    model: Name
    profile: Name
    profile_hash: str
    served_names: list[str]
    rank: Annotated[int, msgspec.Meta(ge=0, lt=SHARDS_PER_REPLICA_MAX)] = 0
    nodes: Annotated[int, msgspec.Meta(ge=1, le=SHARDS_PER_REPLICA_MAX)] = 1
    gpus: Annotated[list[str], msgspec.Meta(max_length=GPUS_PER_NODE_MAX)] = []
    engine: Name
    source: str = ""
    task: str = "chat"
    """`chat`, `completion`, `embedding`, …: which one-token request proves readiness."""
    tensor_parallel: Int64 = 1
    pipeline_parallel: Int64 = 1
    args: list[str] = []
    env: dict[str, str] = {}
    fabric: str | None = None
    rendezvous: Rendezvous | None = None
    checksum: str | None = None
    """`sha256:…` of a source that is fetched."""
    fetch_timeout_s: float = 21600.0
    fetch_stall_limit_s: float = 300.0
    rendezvous_timeout_s: float = 120.0
    load_timeout_s: float = 1800.0
    stop_timeout_s: float | None = None


class HeldShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that an agent holds, in whatever phase.

    `version` counts this shard's transitions on its agent, from 1; a report with a version that the server
    has seen changes nothing.
    """

    spec: ShardSpec
    phase: ShardPhase
    version: Int64 = 1
    http_port: TcpPort | None = None
    """Where rank 0 serves (or will serve) HTTP, on the node's address."""
    rendezvous_port: TcpPort | None = None
    extra_ports: Annotated[list[TcpPort], msgspec.Meta(max_length=EXTRA_PORTS_MAX)] = []
    """Further ports that its engine was given, for its own ends."""
    api_key: EngineKey | None = None
    """What the engine demands of whoever talks to it: for routers and probes, and shown to nobody. None: it
    demands nothing, or it serves nothing."""
    reason: str | None = None
    exit_code: int | None = None
    """Of the engine: negative is a signal, None is unknown (an adopted process that was not our child)."""
    output_tail: list[str] = []
    engine_pid: int | None = None
    phase_age_s: float = 0.0
    progress: Progress | None = None
    figures: EngineFigures | None = None
    """Of a ready leader, where its engine tells."""
    figures_problem: Label | None = None
    """Of a ready leader: why nothing of its load is known, when its engine has failed to tell several times in a
    row. It reads on from "its metrics"."""

    def __repr__(self) -> str:
        return shown_without(self, "api_key")


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine's own metrics said of its load, `age_s` ago. None: it does not tell.

    `cache_used` is the share of the KV cache that is in use, from 0 to 1. The others are over its last readings,
    half a minute at most: `prefix_hits` is the share of prompt tokens that its prefix cache had, None also where
    there were none; `prompt_tokens_per_s` include those; `preemptions_per_s` are requests that it set aside for
    want of room in the KV cache.
    """

    running: Annotated[int, msgspec.Meta(ge=0, le=FIGURE_MAX)] | None = None
    waiting: Annotated[int, msgspec.Meta(ge=0, le=FIGURE_MAX)] | None = None
    cache_used: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    prefix_hits: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    prompt_tokens_per_s: Annotated[float, msgspec.Meta(ge=0.0, le=FIGURE_MAX)] | None = None
    tokens_per_s: Annotated[float, msgspec.Meta(ge=0.0, le=FIGURE_MAX)] | None = None
    preemptions_per_s: Annotated[float, msgspec.Meta(ge=0.0, le=FIGURE_MAX)] | None = None
    age_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e9)] = 0.0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a download or of loading. Rides on the shard's status; it is not a transition.

    `total_bytes` is None while nobody has said it: then nothing may be called a percentage.
    """

    what: str
    done_bytes: int | None = None
    total_bytes: int | None = None
    rate_bytes_s: float | None = None
    """Over the last few seconds; None while it is not known."""
    left_s: float | None = None
    note: str = ""


class Register(msgspec.Struct, frozen=True, kw_only=True):
    """A node says who it is, what it has and what it holds.

    (`boot_id`, `instance`, `counter`) orders lives: `boot_id` is the kernel's, `instance` is made anew by each
    agent process, `counter` grows with each registration of the process. `instance_started_at` is seconds
    since that boot (CLOCK_BOOTTIME), so that a later process of one boot is known to be later.
    """

    node_id: NodeId
    boot_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    instance: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    instance_started_at: float
    counter: Int64
    version: Label
    features: Annotated[list[str], msgspec.Meta(max_length=64)] = []
    inventory: Inventory
    held: Annotated[list[HeldShard], msgspec.Meta(max_length=SHARDS_PER_NODE_MAX)] = []
    last_upgrade: LastUpgrade | None = None


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The server's answer: the session that every later call carries."""

    session: str
    server_version: str
    poll_wait_s: float = POLL_WAIT_S


class StartShard(msgspec.Struct, frozen=True, kw_only=True, tag="start_shard"):
    """Run this shard. A shard id that the agent holds already (in any phase) changes nothing."""

    seq: int
    spec: ShardSpec


class StopShard(msgspec.Struct, frozen=True, kw_only=True, tag="stop_shard"):
    """End this shard and everything that belongs to it. An id that is not held is answered with `stopped`."""

    seq: int
    shard_id: str
    reason: str


class ReadLog(msgspec.Struct, frozen=True, kw_only=True, tag="read_log"):
    """Send a part of a shard's output: from `offset` bytes (None: the last `lines` lines) to the end."""

    seq: int
    request_id: str
    shard_id: str
    stream: str = "engine"
    offset: int | None = None
    lines: int = 100


class ReadEngineHelp(msgspec.Struct, frozen=True, kw_only=True, tag="read_engine_help"):
    """Ask an engine of this node for its whole help text. Only for agents with the feature `engine_help`."""

    seq: int
    request_id: str
    engine: str


class ListWeights(msgspec.Struct, frozen=True, kw_only=True, tag="list_weights"):
    """Say what lies in the weights folder. `sources` are the catalog's: the agent knows which files they mean."""

    seq: int
    request_id: str
    sources: Annotated[list[str], msgspec.Meta(max_length=SOURCES_MAX)] = []


class RemoveWeights(msgspec.Struct, frozen=True, kw_only=True, tag="remove_weights"):
    """Remove those of `names` to which no shard and none of the catalog's `sources` refers; list the rest."""

    seq: int
    request_id: str
    names: Annotated[list[str], msgspec.Meta(max_length=WEIGHTS_FILES_MAX)]
    sources: Annotated[list[str], msgspec.Meta(max_length=SOURCES_MAX)] = []


Command = (
    StartShard
    | StopShard
    | ReadLog
    | ReadEngineHelp
    | ListWeights
    | RemoveWeights
    | AskFabric
    | PrepareBandwidth
    | ServeBandwidth
    | MeasureBandwidth
    | EndBandwidth
    | Upgrade
)


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    """Wait for commands. `acked` is the highest sequence number that was carried out, all lower ones included."""

    session: str
    acked: int = 0


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """Commands after `acked`, oldest first; empty when the wait was over."""

    commands: list[Command] = []


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `ReadLog`. `offset` is where `text` begins, `next_offset` where to read on."""

    request_id: str
    shard_id: str
    offset: Int64 = 0
    next_offset: Int64 = 0
    text: str = ""
    error: str | None = None
    streams: Annotated[list[Name], msgspec.Meta(max_length=STREAMS_MAX)] = []
    """What the shard's processes have written: `engine`, and its sidecars. Agents of before tell none."""


class EngineHelp(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `ReadEngineHelp`. `error` is a sentence when the engine did not give its help.

    `sidecars` is the help of programs that replicas may start beside the engine, by name; None is one that is
    there and could not be asked.
    """

    request_id: str
    engine: Name
    text: HelpString = ""
    version: Label | None = None
    sidecars: Annotated[dict[Name, HelpString | None], msgspec.Meta(max_length=4)] = {}
    error: str | None = None


class WeightsFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file below a node's weights folder. `name` is its path there."""

    name: str
    size_bytes: Int64
    state: Literal["complete", "partial", "foreign"]
    """`foreign`: llmgw did not fetch it."""
    total_bytes: Int64 | None = None
    """Of a partial one: what it will have, where its source has said so."""
    sources: list[str] = []
    """The catalog's sources that refer to it."""
    shards: list[str] = []
    """The node's shards that use it."""


class WeightsListing(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in a node's weights folder. `left_out` counts the files beyond the bound."""

    dir: str
    files: Annotated[list[WeightsFile], msgspec.Meta(max_length=WEIGHTS_FILES_MAX)] = []
    left_out: Int64 = 0
    disk_bytes: Int64 | None = None
    disk_free_bytes: Int64 | None = None


class WeightsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `ListWeights` and `RemoveWeights`; `error` is a sentence when there is no listing."""

    request_id: str
    listing: WeightsListing | None = None
    removed: list[str] = []
    kept: dict[str, str] = {}
    """Name → why it was not removed."""
    error: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeats, transitions and answers. `shards` holds every shard whose status the server must learn.

    `inventory` is None in a report that only carries transitions. Every heartbeat carries all held shards;
    a shard missing from one is not gone by that (only a registration is complete by definition).
    """

    session: str
    inventory: Inventory | None = None
    shards: Annotated[list[HeldShard], msgspec.Meta(max_length=SHARDS_PER_NODE_MAX)] = []
    logs: Annotated[list[LogChunk], msgspec.Meta(max_length=64)] = []
    helps: Annotated[list[EngineHelp], msgspec.Meta(max_length=4)] = []
    weights: Annotated[list[WeightsAnswer], msgspec.Meta(max_length=8)] = []
    fabrics: Annotated[list[FabricText], msgspec.Meta(max_length=2)] = []
    bandwidths: Annotated[list[BandwidthAnswer], msgspec.Meta(max_length=8)] = []
    upgrades: Annotated[list[UpgradeTold], msgspec.Meta(max_length=8)] = []


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a report. Shards named in `forget` were ended and recorded: the agent may drop them."""

    forget: list[str] = []


class Renew(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate signing request for the very name that the connection proved."""

    csr_pem: Annotated[str, msgspec.Meta(max_length=16384)]


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """The new certificate, followed by the intermediate that signed it."""

    cert_pem: str


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is not 200. `code` is stable, `message` is a sentence for people."""

    code: str
    message: str
