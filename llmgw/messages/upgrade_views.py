"""Upgrades of agents as the admin API shows them, and as the store keeps them over a restart."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from llmgw.messages.upgrade import FileName, Sha256, Signature

UPGRADE_WAIT_S_MAX: Final = 30
BACK_WITHIN_S: Final = 180.0
NODES_MAX: Final = 4096

UpgradeState = Literal["running", "done", "stopped", "cancelled"]
NodeUpgradeState = Literal[
    "waiting", "preparing", "restarting", "upgraded", "unchanged", "skipped", "refused", "back", "failed"
]
OVER: frozenset[str] = frozenset({"upgraded", "unchanged", "skipped", "refused", "back", "failed"})
GOOD: frozenset[str] = frozenset({"upgraded", "unchanged"})


class StartUpgrade(msgspec.Struct, frozen=True, kw_only=True):
    """Roll the agents over to a file that was sent before. Without `nodes`: all that are known."""

    name: FileName
    sha256: Sha256
    signature: Signature
    nodes: Annotated[list[str], msgspec.Meta(max_length=NODES_MAX)] = []
    allow_downgrade: bool = False
    back_within_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = BACK_WITHIN_S
    """How long a node may take from its switch until it is back with all its engines."""


class NodeUpgrade(msgspec.Struct, frozen=True, kw_only=True):
    """One node of an upgrade.

    `preparing`: its agent fetches, proves and installs the file; `restarting`: the new program is awaited;
    `skipped`: nobody was there to be asked; `refused`: its agent would not, and nothing has changed there;
    `back`: the new program did not come up and the one from before runs; `failed`: it did not come back in time.
    """

    node: str
    state: NodeUpgradeState = "waiting"
    was: str = ""
    """The version before."""
    reason: str = ""
    engines: dict[str, int | None] = {}
    """Shard → its engine's process, of those that were ready before: the same must be ready again."""
    stage: str = ""
    """What its agent said last, while it prepares."""
    done_bytes: int | None = None


class UpgradeView(msgspec.Struct, frozen=True, kw_only=True):
    """An upgrade of agents, node by node in the order of `nodes`.

    `stopped`: a node was not back as it should be, and the nodes after it were left alone; `reason` says why.
    """

    id: str
    name: str
    version: str
    sha256: str
    size_bytes: int
    signature: str
    allow_downgrade: bool = False
    back_within_s: float = BACK_WITHIN_S
    by: str = ""
    started_at: float = 0.0
    ended_at: float | None = None
    state: UpgradeState = "running"
    reason: str = ""
    cancelled_by: str | None = None
    """Set while a node that had begun is let finish."""
    nodes: list[NodeUpgrade] = []
    change: int = 0
    """Grows whenever something of it changes."""
