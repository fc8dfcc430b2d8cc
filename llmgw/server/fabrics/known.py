"""What the server knows of each physical fabric, for pages, API, findings and placement."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmgw.fabric.managers import Managers
from llmgw.fabric.report import Analysis


@dataclass(frozen=True, slots=True)
class FabricMap:
    """The newest map of a fabric. Never changed after it was made: threads and pages share it."""

    at: float
    """When it was taken, seconds since the epoch."""
    asked: str
    """The node that was asked, and through which port: `node01 mlx5_0:1`."""
    analysis: Analysis


@dataclass(slots=True)
class KnownFabric:
    """One physical fabric."""

    id: str
    """Kept for ever; first the lowest GUID among its managers."""
    names: tuple[str, ...] = ()
    """What operators call it; one, when all is well."""
    managers: Managers | None = None
    """The last answer that said something; None before the first."""
    managers_at: float | None = None
    """When that was, seconds since the epoch."""
    silent_since: float | None = None
    """Since when nobody answers, seconds since the epoch; None while somebody does."""
    map: FabricMap | None = None
    map_error: str | None = None
    """Why the last attempt to map it failed, as a sentence; None when it did not."""
    nodes: tuple[str, ...] = ()
    """Nodes that have a port on it."""
    problems: list[str] = field(default_factory=list)
    """What is wrong with it, in sentences."""
