"""What becomes of replicas that must be replaced though they are healthy, in words: who waits, and for what.

Nothing is decided here: it asks what `reconcile` asks before it starts a replacement, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.config.catalog import Catalog
from llmgw.fleet.model import Backoff, Fleet, ReplicaState
from llmgw.fleet.placement import place
from llmgw.fleet.reconcile import backoff_of, forced, models_in_motion
from llmgw.fleet.room import Room, Wanted
from llmgw.fleet.sets import Sets


@dataclass(frozen=True, slots=True)
class Move:
    """One replica that must leave: why, and what it waits for. `stuck` ones need room, or a form that works."""

    replica_id: str
    reason: str
    waits: str
    stuck: bool = False

    @property
    def sentence(self) -> str:
        """Both as one sentence."""
        return f"{self.reason}; {self.waits}"


def retry_of(backoff: Backoff, now: float) -> str:
    """`tried again in 20 s after 2 failures, the last (chat-7f3a2c): …`: why a start waits, and how long."""
    failures = "1 failure" if backoff.failures == 1 else f"{backoff.failures} failures"
    wait_s = backoff.not_before - now
    return f"tried again in {wait_s:.0f} s after {failures}, the last ({backoff.replica_id}): {backoff.reason}"


def moves(fleet: Fleet, catalog: Catalog, now: float) -> dict[str, Move]:
    """Every live replica that must be replaced, by its id. `now` is seconds of the fleet's monotonic clock."""
    sets = Sets.of(fleet, catalog)
    leaving = [
        (replica, reason)
        for replica in (*sets.starting, *sets.serving)
        if (reason := sets.leaving(replica)) is not None
    ]
    if not leaving:
        return {}
    moving, room = models_in_motion(sets), Room.of(fleet)
    no_room: dict[tuple[str, str], str] = {}
    found = {}
    for replica, reason in leaving:
        stuck = False
        entry = catalog.find(replica.model, replica.profile)
        replacement = sets.replacement_of(replica)
        backoff = backoff_of(fleet, *entry) if entry is not None else None
        if entry is None:
            waits = "it is about to be stopped, since the catalog does not have it any more"
        elif fleet.settling:
            waits = "it waits until the server, which has just started, knows its nodes"
        elif replica.state is not ReplicaState.READY:
            waits = "it does not serve yet and is started anew"
        elif replacement is not None:
            waits = f"it waits until its replacement {replacement.replica_id} is ready"
        elif forced(fleet, replica) or sets.surplus_of(replica.model, entry[1]) > 0:
            waits = "it is about to be stopped"
        elif replica.model in moving:
            waits = "it waits for its turn: one replica of a model is moved at a time"
        elif entry[1].stop_first:
            waits = "it is about to be stopped (stop_first)"
        elif backoff is not None and now < backoff.not_before:
            waits = f"it is left serving, and its replacement is {retry_of(backoff, now)}"
            stuck = True
        else:
            key = (replica.model, replica.profile)
            if key not in no_room:
                no_room[key] = place(fleet, Wanted(replica.model, entry[1]), room).reason
            stuck = bool(no_room[key])
            waits = "it is about to be moved"
            if stuck:
                waits = f"it is left serving, since nothing else can take it: {no_room[key]}"
        found[replica.replica_id] = Move(replica.replica_id, reason, waits, stuck)
    return found
