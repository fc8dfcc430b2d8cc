"""What the admin API answers about fabrics: stable shapes, only ever added to.

Times are seconds since the epoch (UTC), ages seconds, GUIDs `0x` and 16 digits.
"""

from __future__ import annotations

import msgspec


class ManagerView(msgspec.Struct, frozen=True, kw_only=True):
    """One subnet manager. `guid` is that of the port it runs on."""

    guid: str | None
    lid: int | None = None
    priority: int | None = None
    host: str | None = None
    """The machine that the map, or an agent, says the port is of."""


class CableEndView(msgspec.Struct, frozen=True, kw_only=True):
    """One end of a cable: a switch's or an adapter's port."""

    guid: str
    port: int
    name: str | None = None


class SlowCableView(msgspec.Struct, frozen=True, kw_only=True):
    """A cable below the rate that both its ends could do."""

    a: CableEndView
    b: CableEndView
    rate: str
    expected: str
    why: str


class FabricMapView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest map of a fabric, in figures. A cable is counted once."""

    at: float
    age_s: float
    asked: str
    """The node that was asked, and through which port: `node01 mlx5_0:1`."""
    whole: bool
    """False: lines or ends of cables are missing, or the tool complained; what is missing may still be there."""
    switches: int
    tiers: dict[str, int]
    adapters: int
    cables: int
    rates: dict[str, int]
    slow: list[SlowCableView] = []


class FabricView(msgspec.Struct, frozen=True, kw_only=True):
    """One fabric by name, over all nodes that declare it.

    A name that stands for several physical fabrics (a problem) has an entry for each, with the nodes on it.
    """

    name: str
    nodes: list[str]
    """Nodes on which it is usable."""
    unusable: dict[str, str] = {}
    """Node → why it is not offered there."""
    gpus: int = 0
    gpus_free: int = 0
    rate_gbps: float | None = None
    replicas: list[str] = []
    id: str | None = None
    """Of the physical fabric, kept for ever; None while nothing has told it, and for RoCE."""
    ids: list[str] = []
    """All physical fabrics that the name stands for; one, when all is well."""
    link_layer: str | None = None
    """`InfiniBand`, or `Ethernet`, which has no subnet managers and no map; None: no port of it is usable."""
    answer: str = "unknown"
    """`ok`: its managers answered; `unknown`: nothing answers just now, and what is told is what was last seen;
    `none`: it has no subnet manager."""
    answered_at: float | None = None
    """When its managers last answered."""
    silent_since: float | None = None
    master: ManagerView | None = None
    standbys: list[ManagerView] = []
    master_changed_at: float | None = None
    map: FabricMapView | None = None
    map_error: str | None = None
    """Why the last attempt to map it failed, as a sentence."""
    accepted_at: float | None = None
    """When its cabling was accepted; None: never."""
    accepted_by: str | None = None
    differences: int = 0
    """How many there are between the accepted cabling and the newest map."""
    changes: int = 0
    """In the last day: of cabling, managers and ports."""
    problems: list[str] = []
    """What is wrong with it, in sentences."""


class FabricChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that changed. `what` is the sentence."""

    id: int
    at: float
    area: str
    """`cabling`, `managers` or `port`."""
    kind: str
    """`cable gone`, `master changed`, `port state`, …"""
    what: str
    fabric: str | None = None
    """The id of the physical fabric, where it was known."""
    name: str | None = None
    node: str | None = None
    """A node of the map (`S-…`, `H-…`), or of the cluster for a port."""
    port: int | None = None
    before: str | None = None
    after: str | None = None


class CablingDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How the newest map differs from the accepted cabling."""

    kind: str
    what: str


class FabricChanges(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/v1/fabrics/{name}/changes`: newest first; changes of ports reach back a day."""

    name: str
    ids: list[str]
    accepted_at: float | None = None
    accepted_by: str | None = None
    differences: list[CablingDifference] = []
    changes: list[FabricChangeView] = []
