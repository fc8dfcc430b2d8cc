"""What the server knows of each physical fabric, for pages, API, findings and placement."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmgw.fabric.changes import Cabling, Change
from llmgw.fabric.managers import Answer, Managers
from llmgw.fabric.report import Analysis


@dataclass(frozen=True, slots=True)
class FabricMap:
    """The newest map of a fabric. Never changed after it was made: threads and pages share it."""

    at: float
    """When it was taken, seconds since the epoch."""
    asked: str
    """The node that was asked, and through which port: `node01 mlx5_0:1`."""
    analysis: Analysis


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Ports of one fabric that report different masters."""

    since: float
    """Seconds since the epoch."""
    ports: dict[int, list[str]]
    """The master's LID → the ports that report it, `node01 mlx5_0:1`."""


@dataclass(slots=True)
class KnownFabric:
    """One physical fabric."""

    id: str
    """Kept for ever; first the lowest GUID among its managers."""
    names: tuple[str, ...] = ()
    """What operators call it; one, when all is well."""
    answer: Answer = "unknown"
    """`unknown` also until its managers have been asked for the first time since the server started."""
    managers: Managers | None = None
    """The last answer that named a master; None before the first."""
    managers_at: float | None = None
    """When that was, seconds since the epoch."""
    managers_error: str | None = None
    """Why the last attempt to ask for them failed on our side, as a sentence; None when it did not."""
    silent_since: float | None = None
    """Since when nobody answers, seconds since the epoch; None while somebody does."""
    master_changed_at: float | None = None
    disagreement: Disagreement | None = None
    in_init: tuple[str, ...] = ()
    """Its ports that are up and have no manager, `node01 mlx5_0:1`."""
    map: FabricMap | None = None
    map_error: str | None = None
    """Why the last attempt to map it failed, as a sentence; None when it did not."""
    cabling: Cabling | None = None
    """As it was last seen, by this server or an earlier one."""
    accepted: Cabling | None = None
    accepted_at: float | None = None
    accepted_by: str | None = None
    differences: tuple[Change, ...] = ()
    """Between the accepted cabling and the newest map."""
    nodes: tuple[str, ...] = ()
    """Nodes that have a port on it."""
    problems: list[str] = field(default_factory=list)
    """What is wrong with it, in sentences, as of the last look."""
    errors: list[str] = field(default_factory=list)
    """Those of the problems that are errors."""
    master_changes: int = 0
    """Since this server started; as are the next."""
    changes: dict[str, int] = field(default_factory=dict)
    """Area (`cabling`, `managers`, `port`) → how many."""


@dataclass(slots=True)
class KnownName:
    """What an operator calls a fabric, of InfiniBand ports, as long as no physical fabric is known for it."""

    name: str
    answer: Answer = "unknown"
    error: str | None = None
    """Why nothing is known, as a sentence; None while it is being asked."""
    unasked: tuple[str, ...] = ()
    """Its nodes, when the agent of none of them can be asked."""
    map_error: str | None = None
    in_init: tuple[str, ...] = ()
