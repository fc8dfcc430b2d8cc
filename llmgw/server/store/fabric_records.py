"""What the store keeps of physical fabrics, as it is read back. Times are seconds since the epoch (UTC)."""

from __future__ import annotations

from typing import Literal

import msgspec

Area = Literal["cabling", "managers", "port"]


class PhysicalFabricRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One physical fabric. GUIDs are texts; `said`, `cabling` and `accepted` are JSON of their owners' shapes."""

    id: str
    names: list[str] = []
    managers: list[str] = []
    switches: list[str] = []
    said: str | None = None
    said_at: float | None = None
    master_changed_at: float | None = None
    cabling: str | None = None
    cabling_at: float | None = None
    accepted: str | None = None
    accepted_at: float | None = None
    accepted_by: str | None = None


class FabricChange(msgspec.Struct, frozen=True, kw_only=True):
    """Something that changed on a fabric; `what` is the sentence."""

    at: float
    area: Area
    kind: str
    what: str
    fabric: str | None = None
    """The id of the physical fabric, where it is known."""
    name: str | None = None
    """What operators call it, where a port tells it."""
    node: str | None = None
    port: int | None = None
    before: str | None = None
    after: str | None = None
