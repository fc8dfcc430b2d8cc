"""What happened, for history: a value that the caller stamps with the wall clock and stores."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.fleet.model import Replica


@dataclass(frozen=True, slots=True)
class Event:
    """One transition with its reason. `kind` and `event` are the words of `HistoryEntry`."""

    kind: str
    subject: str
    event: str
    reason: str = ""
    model: str | None = None
    nodes: tuple[str, ...] = ()


def replica_event(replica: Replica, event: str, reason: str = "") -> Event:
    """An event of a replica, with its model and nodes."""
    return Event("replica", replica.replica_id, event, reason, replica.model, tuple(replica.node_ids))


def node_event(node_id: str, event: str, reason: str = "") -> Event:
    """An event of a node."""
    return Event("node", node_id, event, reason, None, (node_id,))
