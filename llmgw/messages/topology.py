"""A fabric as the admin API tells it and the pages draw it: the map, which rarely changes, and what is alive.

Names and descriptions come from the fabric and are anybody's words: whoever shows them escapes them.
"""

from __future__ import annotations

import msgspec


class TopologySwitch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One switch. `x`, `y`: the middle of its upper edge in the drawing's world."""

    id: str
    guid: str
    label: str
    name: str | None = None
    tier: str | None = None
    """leaf, spine or core; None: no cable joins it to an adapter."""
    ports: int | None = None
    lid: int | None = None
    x: float
    y: float


class TopologyAdapter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One adapter, or a router. `x`, `y`: where its cable arrives."""

    id: str
    guid: str
    label: str
    kind: str = "adapter"
    owner: str | None = None
    """The node whose it is."""
    adapter: str | None = None
    """What that node calls it."""
    known_by: str | None = None
    """`guid`: its node's agent reports this GUID. `description`: a guess from what it calls itself."""
    leaf: str | None = None
    """Id of the leaf that it hangs on; None: on none, or on several."""
    rail: int | None = None
    lid: int | None = None
    x: float
    y: float


class TopologyGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's adapters under one switch, drawn as one box; `x`, `y`: its upper left corner."""

    switch: str | None = None
    owner: str | None = None
    label: str
    x: float
    y: float
    adapters: list[str]


class TopologySlow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a cable is below its rate."""

    expected: str
    expected_gbps: float | None = None
    fault: str
    """`speed`, `width` or `speed and width`."""
    judged_by: str
    """`kinds` of both ends, its `trunk`, or its `likes` on the same switch."""
    why: str


class TopologyCable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cable, once. `a` and `b` are ids of switches or adapters."""

    a: str
    a_port: int
    b: str
    b_port: int
    rate: str
    """`4xNDR`, or `unknown`."""
    gbps: float | None = None
    slow: TopologySlow | None = None


class TopologyTier(msgspec.Struct, frozen=True, kw_only=True):
    """One tier of switches and the upper edge of its row."""

    tier: str
    switches: int
    y: float


class TopologyRail(msgspec.Struct, frozen=True, kw_only=True):
    """The Nth adapter of every node. `aligned`: it has leaves of its own."""

    rail: int
    labels: list[str]
    adapters: int
    aligned: bool


class TopologySizes(msgspec.Struct, frozen=True, kw_only=True):
    """Of the drawing's parts, in its world's units."""

    width: float
    height: float
    switch_width: float
    switch_height: float
    group_width: float
    group_height: float


class TopologyGraph(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fabric as it is cabled, and where a drawing puts it."""

    version: str
    """Changes with every other map."""
    at: float
    """When the map was taken, seconds since the epoch."""
    asked: str
    """The node that was asked, and through which port."""
    sizes: TopologySizes
    tiers: list[TopologyTier]
    switches: list[TopologySwitch]
    adapters: list[TopologyAdapter]
    groups: list[TopologyGroup]
    cables: list[TopologyCable]
    rails: list[TopologyRail]
    sharp: int = 0
    """Aggregation nodes inside switches; they are not drawn."""
    problems: list[str] = []
    """What a person should know before trusting the map."""


class LivePort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A port of the cluster's own on this fabric, as its node's last heartbeat told it. None is unknown."""

    node: str
    adapter: str
    port: int
    id: str | None = None
    """Of the adapter on the map; None: it is not on it."""
    state: str | None = None
    phys_state: str | None = None
    rate_text: str | None = None
    rate_gbps: float | None = None
    lid: int | None = None
    sm_lid: int | None = None
    down: bool = False
    why: str | None = None
    """What keeps it from carrying traffic, and what to do."""
    tx_gbps: float | None = None
    rx_gbps: float | None = None
    counters: dict[str, int] = {}
    """Those that are not zero."""


class LiveNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of the cluster on this fabric."""

    node: str
    state: str
    heard_s: float | None = None
    """Seconds since its agent was last heard."""
    unusable: str | None = None
    """Why it does not offer this fabric."""


class LiveReplica(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica with a shard on one of these nodes. `spans`: its shards talk to each other over this fabric."""

    replica_id: str
    model: str
    profile: str
    state: str
    nodes: list[str]
    spans: bool = False


class LiveManager(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subnet manager, and the adapter or switch that it runs on where the map has it."""

    role: str
    """`master` or `standby`."""
    guid: str | None = None
    lid: int | None = None
    priority: int | None = None
    id: str | None = None
    name: str | None = None
    """What that is called; None: the map does not have it."""


class TopologyLive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is alive on a fabric; small, and asked for again and again."""

    id: str
    names: list[str]
    at: float
    """When this was told, seconds since the epoch."""
    version: str | None = None
    """Of the newest graph; None: there is none."""
    map_at: float | None = None
    map_text: str | None = None
    """`40 switches, 542 adapters, 1114 cables, 1 below its rate`."""
    map_error: str | None = None
    ports: list[LivePort] = []
    nodes: list[LiveNode] = []
    replicas: list[LiveReplica] = []
    managers: list[LiveManager] = []
    managers_text: str | None = None
    """`managed by sm1 mlx5_0 (priority 14); standby: sm2 mlx5_0`; None: nobody has told of any."""
    managers_at: float | None = None
    silent_since: float | None = None
    """Since when no manager answers; None while one does."""
    problems: list[str] = []
    """What is wrong with it, and the cluster's own ports that are down."""
    errors: list[str] = []
    """Those of the problems that are errors; the others are warnings."""


class TopologyView(msgspec.Struct, frozen=True, kw_only=True):
    """Both. `graph` is null while nobody has mapped the fabric, and left out when only `live` was asked for."""

    live: TopologyLive
    graph: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class FabricSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A fabric in the list of pages."""

    id: str
    """By which its page is found: the physical fabric's, or the operator's name while nobody has asked it."""
    names: list[str]
    nodes: list[str]
    managers: list[LiveManager] = []
    managers_answer: str = "unknown"
    """`ok`, `unknown` or `none`."""
    managers_at: float | None = None
    silent_since: float | None = None
    map_at: float | None = None
    map_error: str | None = None
    map_text: str | None = None
    """`40 switches, 542 adapters, 1114 cables, 1 below its rate`."""
    slow: int = 0
    problems: list[str] = []
    errors: list[str] = []
    """Those of the problems that are errors; the others are warnings."""
