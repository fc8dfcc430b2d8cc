"""What the store keeps, as it is read back. Times are seconds since the epoch (UTC)."""

from __future__ import annotations

from collections import deque

import msgspec

from llmgw.fleet.lives import Life
from llmgw.messages.fabric_test_views import FabricTestResult
from llmgw.server.store.fabric_records import PhysicalFabricRecord
from llmgw.server.store.key_records import KeptKeys

FABRIC_TESTS_KEPT = 20_000
"""Results of measurements between nodes: a walk over all pairs of 50 nodes with 4 adapters makes half as many."""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has registered once and was not removed since."""

    id: str
    address: str | None = None
    first_seen: float
    last_registered: float
    cordoned_at: float | None = None
    draining_at: float | None = None
    drain_forced: bool = False
    life: Life | None = None

    @property
    def cordoned(self) -> bool:
        """True while an operator lets nothing new be placed here."""
        return self.cordoned_at is not None

    @property
    def draining(self) -> bool:
        """True from `drain` to `undrain`, over restarts."""
        return self.draining_at is not None


class FabricRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a node last said of one of its fabrics. `changed_at`: when usability or adapters last changed."""

    name: str
    node: str
    adapters: list[str]
    usable: bool
    reason: str | None = None
    rate_gbps: float | None = None
    changed_at: float


class CatalogRevision(msgspec.Struct, frozen=True, kw_only=True):
    """One numbered revision of the catalog, without its body."""

    number: int
    at: float
    by: str
    note: str = ""


class Revocation(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate that is refused, by its serial number as the authority's list has it."""

    serial: str
    revoked_at: float


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An admin token with the hash of its secret."""

    name: str
    secret_hash: str
    created_at: float
    last_used_at: float | None = None


class Kept(msgspec.Struct, kw_only=True):
    """What the store holds in memory as well, so that it is answered without the disk."""

    epoch: str
    nodes: dict[str, NodeRecord]
    fabrics: dict[tuple[str, str], FabricRecord]
    """(node, fabric name) → record."""
    tokens: dict[str, TokenRecord]
    """Revoked ones are not in it."""
    revocations: dict[str, Revocation]
    """Serial → record."""
    removed_nodes: dict[str, float]
    """Node id → when an operator removed it last."""
    fabric_tests: deque[FabricTestResult]
    """The newest results, oldest first."""
    physical_fabrics: dict[str, PhysicalFabricRecord] = {}
    """Id → record."""
    api_keys: KeptKeys = msgspec.field(default_factory=KeptKeys)
    audit_last_id: int = 0
    """The highest id that the audit log has."""
