"""Nodes, replicas and shards as the control plane believes them to be, and the indexes over them.

Plain data. What agents say enters through `observe` and `adopt`, what is decided through `carry_out`; nothing
else changes it. Times are seconds of one monotonic clock that the caller owns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.fleet.fabric_facts import FabricFacts
from llmgw.fleet.fabric_test_gate import FabricTestGate
from llmgw.messages.agent import (
    EngineFigures,
    EngineOffer,
    FabricOffer,
    Gpu,
    Inventory,
    Progress,
    ShardSpec,
)
from llmgw.messages.routes import RouteEndpoint, TableVersion
from llmgw.messages.upgrade import LastUpgrade


class NodeState(StrEnum):
    """What is believed of a node."""

    UNKNOWN = "unknown"
    """Known from the store; has not registered since this server started."""
    READY = "ready"
    UNREACHABLE = "unreachable"
    """The agent is silent while the node's shards work, or the node holds none."""
    LOST = "lost"


class ReplicaState(StrEnum):
    """The life of a replica."""

    ADOPTING = "adopting"
    """Reported by agents, not known here; waits until it is whole."""
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Planned to stop: no longer routed to, its requests are running out."""
    STOPPING = "stopping"
    FAILED = "failed"
    """Given up; what is left of its shards is being reaped."""


# Replicas that serve or will: they count towards the wanted number.
LIVE_STATES = frozenset({ReplicaState.ADOPTING, ReplicaState.STARTING, ReplicaState.READY})

COMMANDED = "commanded"
"""A shard whose start was sent and that its agent has not reported yet."""
LOST = "lost"
"""A shard whose node is lost: it may still run, its GPUs are not offered."""
GONE = "gone"
"""A shard of which nothing is left."""
LAST_WORDS_MAX = 200
ENDS_TOLD_MAX = 512
"""Far above what an agent tells in one report (SHARDS_PER_NODE_MAX)."""


@dataclass(slots=True)
class Node:
    """A machine with an agent."""

    node_id: str
    state: NodeState = NodeState.UNKNOWN
    reason: str | None = None
    since: float = 0.0
    address: str | None = None
    """Where its engines are reached: the address it was enrolled with."""
    known: bool = False
    """In the store when this server started: settling waits for it."""
    session: str | None = None
    last_heard: float = float("-inf")
    registered_at: float = float("-inf")
    """When its agent registered last."""
    lost_not_before: float = float("-inf")
    """Not declared lost before this, whatever its silence: most nodes were silent, and it may still come back."""
    version: str = ""
    features: frozenset[str] = frozenset()
    last_upgrade: LastUpgrade | None = None
    """How the last upgrade of its agent ended, as it said when it registered."""
    cordoned: bool = False
    draining: bool = False
    drain_forced: bool = False
    inventory: Inventory = field(default_factory=Inventory)
    inventory_at: float = float("-inf")
    """When it was said."""
    certificate_expires_at: float | None = None
    failures: list[tuple[float, tuple[str, str]]] = field(default_factory=list)
    """When shards failed here by themselves, and of which (model, profile); the newest few."""
    suspect: str | None = None
    """Why it is placed on last, or None."""
    disowned: dict[str, ShardSpec] = field(default_factory=dict)
    """Shards that the agent holds and no replica here owns: being stopped; their GPUs are in use until then."""
    disowned_sent: dict[str, str] = field(default_factory=dict)
    """Shard id → the session in which its stop was sent."""
    ends_told: dict[str, None] = field(default_factory=dict)
    """Shards whose end this node has told, the newest few hundred: it tells them until they are acknowledged."""

    def end_is_news(self, shard_id: str) -> bool:
        """True the first time that this node tells the end of a shard."""
        if shard_id in self.ends_told:
            return False
        self.ends_told[shard_id] = None
        if len(self.ends_told) > ENDS_TOLD_MAX:
            del self.ends_told[next(iter(self.ends_told))]
        return True

    def disown(self, spec: ShardSpec) -> None:
        """Have a shard ended that no replica here owns; one that is back after its end is told again."""
        if spec.shard_id not in self.disowned:
            self.disowned[spec.shard_id] = spec
            self.disowned_sent.pop(spec.shard_id, None)

    def forget_disowned(self, shard_id: str) -> None:
        """Nothing is left of a disowned shard."""
        self.disowned.pop(shard_id, None)
        self.disowned_sent.pop(shard_id, None)

    @property
    def offered(self) -> bool:
        """True while its GPUs may be placed on."""
        return self.state is NodeState.READY and self.session is not None

    @property
    def gpus(self) -> list[Gpu]:
        """All GPUs, usable or not."""
        return self.inventory.gpus

    def fabric(self, name: str) -> FabricOffer | None:
        """The usable fabric of that name, or None."""
        for offer in self.inventory.fabrics:
            if offer.name == name and offer.usable:
                return offer
        return None

    @property
    def usable_fabrics(self) -> list[str]:
        """Names of the usable fabrics."""
        return [offer.name for offer in self.inventory.fabrics if offer.usable]

    def engine(self, name: str) -> EngineOffer | None:
        """The engine as this node offers it, or None."""
        for offer in self.inventory.engines:
            if offer.name == name:
                return offer
        return None


@dataclass(slots=True)
class Shard:
    """The processes of a replica on one node."""

    spec: ShardSpec
    node_id: str
    phase: str = COMMANDED
    since: float = 0.0
    version: int = 0
    http_port: int | None = None
    rendezvous_port: int | None = None
    api_key: str | None = field(default=None, repr=False)
    """What its engine demands of routers and probes; for the route table only."""
    reason: str | None = None
    exit_code: int | None = None
    output_tail: list[str] = field(default_factory=list)
    engine_pid: int | None = None
    progress: Progress | None = None
    figures: EngineFigures | None = None
    """What its engine said of its load, at `figures_at`."""
    figures_at: float = 0.0
    figures_problem: str | None = None
    """Why its engine has said nothing of it for a while."""
    stop_session: str | None = None
    """The session in which the stop was sent; another session gets it again."""

    @property
    def shard_id(self) -> str:
        """Unique for ever."""
        return self.spec.shard_id

    @property
    def over(self) -> bool:
        """True when nothing of it is left on its node."""
        return self.phase in (GONE, "stopped", "failed")

    @property
    def ending(self) -> str:
        """Why it is over, and the last line that it wrote when it failed: engines say there what was wrong."""
        why = self.reason or self.phase
        last = next((line.strip() for line in reversed(self.output_tail) if line.strip()), "")
        if self.phase != "failed" or not last or last in why:
            return why
        return f"{why}; its last words: {last if len(last) <= LAST_WORDS_MAX else last[:LAST_WORDS_MAX] + '…'}"

    @property
    def holds_gpus(self) -> bool:
        """True while its GPUs are in use, or may be."""
        return not self.over


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one rank of a replica sits: a node and GPUs (UUIDs) on it."""

    node_id: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outage:
    """The fabric is down under a replica of several nodes."""

    since: float
    nodes: tuple[str, ...]
    """On which of its nodes, in the order of its seats."""
    reason: str
    out_since: float | None = None
    """Since when the replica is out of the rotation for it; None while it is not."""


@dataclass(slots=True)
class Replica:
    """One running instance of a profile."""

    replica_id: str
    model: str
    profile: str
    profile_hash: str
    nodes: int
    engine: str
    state: ReplicaState
    since: float
    created_at: float
    seats: dict[int, Seat] = field(default_factory=dict)
    """Rank → seat. While adopting, only the ranks that were reported."""
    shards: dict[int, Shard] = field(default_factory=dict)
    """Rank → shard, once its start was sent or it was reported."""
    fabric: str | None = None
    replaces: str | None = None
    reason: str | None = None
    restart_by: str | None = None
    """Who asked for a restart, until it was replaced."""
    given_up: bool = False
    """Failed only because a node was lost: it may return."""
    returned: bool = False
    """It was given up, came back, and found its place taken or not yet."""
    was_ready: bool = False
    ready_at: float | None = None
    withdrawn: TableVersion | None = None
    """The first route table without it, once published."""
    witnessed_at: float = float("-inf")
    """When its leader was last seen to work, by routers or a probe."""
    probed_at: float = float("-inf")
    probe_failed_since: float | None = None
    """When the first of the probes that went unanswered was sent; None after an answer."""
    busy_since: float | None = None
    """Since when routers have had requests on it without a break."""
    counters: float | None = None
    """The engine's progress counters when they were last read."""
    suspended: str | None = None
    """Why it is out of the rotation though it is ready, or None."""
    suspended_at: float = float("-inf")
    ports: dict[str, list[str]] = field(default_factory=dict)
    """Of a replica of several nodes: node → the ports (`mlx5_0:1`) that it was placed or adopted with."""
    outage: Outage | None = None
    """Set while its fabric is down on one of its nodes."""
    reaped: bool = False
    """Its end was recorded; it stays only because a lost node may still hold a part of it."""

    @property
    def leader(self) -> Shard | None:
        """Rank 0, once its start was sent."""
        return self.shards.get(0)

    @property
    def node_ids(self) -> list[str]:
        """Its nodes by rank."""
        return [self.seats[rank].node_id for rank in sorted(self.seats)]

    @property
    def out_of_rotation(self) -> str | None:
        """Why no requests are sent to it though it is ready, or None."""
        if self.outage is not None and self.outage.out_since is not None:
            return f"{self.fabric} is down under it: {self.outage.reason}"
        return self.suspended

    @property
    def live(self) -> bool:
        """True while it serves or will."""
        return self.state in LIVE_STATES

    @property
    def whole(self) -> bool:
        """True when every rank has a shard that is not over and not on a lost node."""
        return all(
            (shard := self.shards.get(rank)) is not None and not shard.over and shard.phase != LOST
            for rank in range(self.nodes)
        )


@dataclass(slots=True)
class Backoff:
    """How a profile's starts are held back after failures."""

    failures: int = 0
    not_before: float = float("-inf")
    reason: str = ""
    """How its last replica failed: the first rank that was heard of, and others that failed by themselves."""
    replica_id: str = ""
    """Of that replica: its last output is kept under it."""
    profile_hash: str = ""


@dataclass(slots=True)
class RouterState:
    """What a live router last said."""

    acked: TableVersion | None = None
    in_flight: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class InheritedRoute:
    """An endpoint in the table of routers that outlived the previous server; kept until its node speaks."""

    model: str
    endpoint: RouteEndpoint
    alive_at: float


@dataclass(slots=True)
class Fleet:
    """Everything that the control plane believes."""

    nodes: dict[str, Node] = field(default_factory=dict)
    replicas: dict[str, Replica] = field(default_factory=dict)
    backoff: dict[tuple[str, str], Backoff] = field(default_factory=dict)
    routers: dict[str, RouterState] = field(default_factory=dict)
    inherited: dict[str, InheritedRoute] = field(default_factory=dict)
    """By endpoint id, which is the replica id."""
    settling_until: float | None = None
    """None when settling is over."""
    doubted: frozenset[str] = frozenset()
    """Nodes that fell silent together with most others; while there are any, nothing is declared lost."""
    doubted_at: float = float("-inf")
    stopped_rollouts: dict[tuple[str, str], str] = field(default_factory=dict)
    """(model, profile) → the form that is not rolled out any further."""
    evictions: list[float] = field(default_factory=list)
    """When replicas that may still have been serving were given up; the last window's."""
    fabric_facts: FabricFacts = field(default_factory=FabricFacts)
    """What the fabrics' own managers and maps tell."""
    fabric_test_gate: FabricTestGate | None = None
    """Which nodes passed a test of their fabric lately; None: replicas are placed without."""

    @property
    def settling(self) -> bool:
        """True until every known node has registered or the time is over."""
        return self.settling_until is not None

    def shard(self, shard_id: str) -> tuple[Replica, Shard] | None:
        """The shard and its replica by the shard's id."""
        replica_id, _, rank = shard_id.rpartition(".")
        replica = self.replicas.get(replica_id)
        if replica is None or not rank.isdecimal():
            return None
        shard = replica.shards.get(int(rank))
        return (replica, shard) if shard is not None and shard.shard_id == shard_id else None

    def shards_on(self, node_id: str) -> list[tuple[Replica, Shard]]:
        """Every shard on a node that is not over, with its replica."""
        return [
            (replica, shard)
            for replica in self.replicas.values()
            for shard in replica.shards.values()
            if shard.node_id == node_id and not shard.over
        ]

    def shards_by_node(self) -> dict[str, list[tuple[Replica, Shard]]]:
        """`shards_on` of every node that has any, for who asks about all of them."""
        found: dict[str, list[tuple[Replica, Shard]]] = {}
        for replica in self.replicas.values():
            for shard in replica.shards.values():
                if not shard.over:
                    found.setdefault(shard.node_id, []).append((replica, shard))
        return found

    def gpus_in_use(self) -> dict[str, set[str]]:
        """Node id → GPUs that a shard holds, may hold, or was promised."""
        used: dict[str, set[str]] = {}
        for replica in self.replicas.values():
            for rank, seat in replica.seats.items():
                shard = replica.shards.get(rank)
                promised = shard is None and replica.live
                if promised or (shard is not None and shard.holds_gpus):
                    used.setdefault(seat.node_id, set()).update(seat.gpus)
        for node in self.nodes.values():
            for spec in node.disowned.values():
                used.setdefault(node.node_id, set()).update(spec.gpus)
        return used


def shard_id_of(replica_id: str, rank: int) -> str:
    """The id of a replica's shard: `big-7f3a2c.0`."""
    return f"{replica_id}.{rank}"
