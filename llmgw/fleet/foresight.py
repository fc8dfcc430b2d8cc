"""What a catalog would come to: the core itself, run on a copy of the fleet in which all goes well.

Nothing here decides anything: `reconcile` does, again and again, while starts become ready and stops end at once.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeVar

from llmgw.config.catalog import Catalog
from llmgw.fleet.carry_out import Effects, carry_out
from llmgw.fleet.model import COMMANDED, LOST, Fleet, Replica, ReplicaState
from llmgw.fleet.reconcile import reconcile
from llmgw.fleet.sets import leaving_reason
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.routes import TableVersion

T = TypeVar("T")

STEPS_MAX = 64
"""Generations of starts and stops that are looked ahead: a roll takes a few for each replica of a model."""
ROUNDS_MAX = 200

_WITHDRAWN = TableVersion("foresight", 1)


@dataclass(frozen=True, slots=True)
class Foresight:
    """Where the fleet would arrive."""

    fleet: Fleet
    """The copy, at the end."""
    started_at_once: frozenset[str]
    """Replicas that the first turn would start."""
    complete: bool
    """False when it was broken off: what must still be replaced would go on being replaced."""


def foresee(fleet: Fleet, catalog: Catalog, now: float, settings: FleetSettings) -> Foresight:
    """Run the core on a copy of the fleet until nothing changes any more. `fleet` itself is left alone.

    Profiles are not held back by earlier failures in it, and engines do not fail. A fleet that settles is left as
    it is: its server does not know yet what runs.
    """
    ahead = copied(fleet)
    # All its routers have acknowledged everything, and every retry is due.
    ahead.routers.clear()
    ahead.backoff.clear()
    for node in ahead.nodes.values():
        node.address = node.address or "127.0.0.1"
    numbers = itertools.count(1)

    def new_id(model: str) -> str:
        return f"foreseen {model} {next(numbers)}"

    at_once: frozenset[str] = frozenset()
    for step in range(STEPS_MAX):
        _turn(ahead, catalog, now, settings, new_id)
        if step == 0:
            at_once = frozenset(ahead.replicas.keys() - fleet.replicas.keys())
        if not _all_goes_well(ahead, now):
            return Foresight(ahead, at_once, complete=True)
    return Foresight(ahead, at_once, complete=False)


def outdated(fleet: Fleet, catalog: Catalog, replica: Replica) -> bool:
    """True for a live replica that the catalog wants in another form, or that must leave for another reason."""
    return (
        replica.live
        and catalog.find(replica.model, replica.profile) is not None
        and leaving_reason(fleet, catalog, replica) is not None
    )


def copied(value: T) -> T:
    """A copy that shares nothing that the core changes. Messages and other frozen values are shared."""
    if is_dataclass(value) and not isinstance(value, type):
        if value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            return value
        twin = copy.copy(value)
        for item in fields(value):
            setattr(twin, item.name, copied(getattr(value, item.name)))
        return twin
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, list):
        return [copied(item) for item in value]  # type: ignore[return-value]
    return copy.copy(value) if isinstance(value, set) else value


def _turn(fleet: Fleet, catalog: Catalog, now: float, settings: FleetSettings, new_id: object) -> None:
    for _ in range(ROUNDS_MAX):
        actions = reconcile(fleet, catalog, now, settings, new_id)  # type: ignore[arg-type]
        if not actions:
            return
        effects = Effects()
        for action in actions:
            carry_out(fleet, catalog, action, now, settings, effects)


def _all_goes_well(fleet: Fleet, now: float) -> bool:
    """Let agents and routers have done what they were told to. False when there was nothing to do."""
    moved = False
    for replica in fleet.replicas.values():
        if replica.state is ReplicaState.DRAINING and replica.withdrawn is None:
            replica.withdrawn, moved = _WITHDRAWN, True
        for shard in replica.shards.values():
            node = fleet.nodes.get(shard.node_id)
            if shard.over or shard.phase == LOST or node is None or not node.offered:
                continue
            if replica.state is ReplicaState.STARTING and shard.phase != "ready":
                shard.phase, shard.since, moved = "ready", now, True
                shard.rendezvous_port = shard.rendezvous_port or 1
            elif replica.state in (ReplicaState.STOPPING, ReplicaState.FAILED):
                shard.phase, shard.since, moved = "stopped", now, True
            elif shard.phase == COMMANDED:
                shard.phase, moved = "ready", True
    for node in fleet.nodes.values():
        if node.offered and node.disowned:
            node.disowned.clear()
            moved = True
    return moved
