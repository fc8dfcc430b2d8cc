"""What happened, for history: a value that the caller stamps with the wall clock and stores."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.fleet.model import Replica

REASON_CHARS_MAX = 4000
"""A reason may be an agent's own words, and an agent may say anything: history keeps no megabytes."""


@dataclass(frozen=True, slots=True)
class Event:
    """One transition with its reason. `kind` and `event` are the words of `HistoryEntry`."""

    kind: str
    subject: str
    event: str
    reason: str = ""
    model: str | None = None
    nodes: tuple[str, ...] = ()
    once: bool = False
    """It may be told again by whoever did not hear that it was stored: history keeps it once."""

    def __post_init__(self) -> None:
        if len(self.reason) > REASON_CHARS_MAX:
            object.__setattr__(self, "reason", self.reason[: REASON_CHARS_MAX - 1] + "…")


def replica_event(replica: Replica, event: str, reason: str = "") -> Event:
    """An event of a replica, with its model and nodes."""
    return Event("replica", replica.replica_id, event, reason, replica.model, tuple(replica.node_ids))


def node_event(node_id: str, event: str, reason: str = "") -> Event:
    """An event of a node."""
    return Event("node", node_id, event, reason, None, (node_id,))
