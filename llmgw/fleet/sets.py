"""Sorts everything that is believed into sets with names. `reconcile` builds them once and decides on them.

Nothing is decided here. Sets keep the order in which replicas came, so that decisions do too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from llmgw.config.catalog import Catalog, Profile
from llmgw.fleet.model import (
    COMMANDED,
    GONE,
    LOST,
    Fleet,
    Node,
    NodeState,
    Replica,
    ReplicaState,
    Shard,
)


class ShardSet(StrEnum):
    """Where a shard belongs. Every shard is in exactly one set: the first that fits, in this order."""

    UNRECOGNISED = "unrecognised"
    """Held by an agent, owned by no replica here: to be disowned."""
    ON_LOST_NODE = "on a lost node"
    """It may still run; nobody can know."""
    MISSING = "missing"
    """Believed to run, and its agent does not report it: let go."""
    FAILED = "failed"
    """Its agent said that it failed, or that nothing is left of it."""
    RECONNECTING = "reconnecting"
    """Its replica was given up, and it is reported again."""
    ENDING = "ending"
    """Its replica was stopped or has failed, and it is not gone yet."""
    DRAINING = "draining"
    """Its replica's requests are running out."""
    BEHIND_UNREACHABLE_NODE = "behind an unreachable node"
    """Its agent is silent while it works."""
    ADOPTED = "adopted"
    """Reported by its agent, and taken over as soon as its replica is whole."""
    STARTING = "starting"
    SERVING = "serving"


_OF_LIVING_SHARDS = {
    ReplicaState.ADOPTING: ShardSet.ADOPTED,
    ReplicaState.STARTING: ShardSet.STARTING,
    ReplicaState.READY: ShardSet.SERVING,
}


def set_of(fleet: Fleet, replica: Replica, shard: Shard) -> ShardSet:
    """The one set that a replica's shard is in."""
    if shard.phase == LOST:
        return ShardSet.ON_LOST_NODE
    if shard.phase == GONE:
        return ShardSet.MISSING
    if shard.over:
        return ShardSet.FAILED
    if replica.state is ReplicaState.FAILED and replica.returned:
        return ShardSet.RECONNECTING
    if replica.state in (ReplicaState.FAILED, ReplicaState.STOPPING):
        return ShardSet.ENDING
    if replica.state is ReplicaState.DRAINING:
        return ShardSet.DRAINING
    node = fleet.nodes.get(shard.node_id)
    if node is not None and node.state is NodeState.UNREACHABLE:
        return ShardSet.BEHIND_UNREACHABLE_NODE
    return _OF_LIVING_SHARDS[replica.state]


_HURT = frozenset({COMMANDED, LOST, GONE, "stopped", "failed"})
"""Phases of a shard that may make its replica fail."""

ProfileKey = tuple[str, str]
"""(model, profile)."""


@dataclass(eq=False)
class Sets:
    """The sets of one fleet under one catalog, and the indexes that decisions need."""

    fleet: Fleet
    catalog: Catalog

    # Replicas, each in one of these six by its state.
    adopting: list[Replica] = field(default_factory=list)
    starting: list[Replica] = field(default_factory=list)
    serving: list[Replica] = field(default_factory=list)
    draining: list[Replica] = field(default_factory=list)
    stopping: list[Replica] = field(default_factory=list)
    failed: list[Replica] = field(default_factory=list)

    # Some of them stand in one of these besides.
    reconnecting: list[Replica] = field(default_factory=list)
    """Failed, given up with a lost node, and reported again whole."""
    hurt: list[Replica] = field(default_factory=list)
    """Starting, serving or draining with a shard that is over, lost or not reported yet, or with a seat on a
    lost node: those that may have to fail."""
    ending: list[Replica] = field(default_factory=list)
    """Draining, stopping and failed."""

    unrecognised: list[tuple[str, str]] = field(default_factory=list)
    """(node id, shard id) of shards that no replica here owns."""

    # Indexes over live replicas.
    by_profile: dict[ProfileKey, list[Replica]] = field(default_factory=dict)
    replacements: dict[str, Replica] = field(default_factory=dict)
    """Replica id → the live replica that was started to take its place."""
    _leaving: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: Fleet, catalog: Catalog) -> Sets:
        """Sort the fleet as it stands."""
        sets = cls(fleet, catalog)
        by_state = {
            ReplicaState.ADOPTING: sets.adopting,
            ReplicaState.STARTING: sets.starting,
            ReplicaState.READY: sets.serving,
            ReplicaState.DRAINING: sets.draining,
            ReplicaState.STOPPING: sets.stopping,
            ReplicaState.FAILED: sets.failed,
        }
        for replica in fleet.replicas.values():
            by_state[replica.state].append(replica)
            if replica.live:
                sets.by_profile.setdefault((replica.model, replica.profile), []).append(replica)
                if replica.replaces is not None:
                    sets.replacements.setdefault(replica.replaces, replica)
            else:
                sets.ending.append(replica)
            if replica.state is ReplicaState.FAILED and replica.returned and replica.whole:
                sets.reconnecting.append(replica)
            if replica.state in (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING) and (
                len(replica.shards) < len(replica.seats)
                or any(shard.phase in _HURT for shard in replica.shards.values())
            ):
                sets.hurt.append(replica)
        for node in fleet.nodes.values():
            if node.disowned:
                sets.unrecognised += [(node.node_id, shard_id) for shard_id in node.disowned]
        return sets

    # What only some ask for.

    @cached_property
    def shards(self) -> dict[ShardSet, list[tuple[str, str]]]:
        """Every shard as (node id, shard id), by its set."""
        found: dict[ShardSet, list[tuple[str, str]]] = {name: [] for name in ShardSet}
        found[ShardSet.UNRECOGNISED] += self.unrecognised
        for replica in self.fleet.replicas.values():
            for shard in replica.shards.values():
                found[set_of(self.fleet, replica, shard)].append((shard.node_id, shard.shard_id))
        return found

    @cached_property
    def surplus(self) -> list[tuple[Replica, str]]:
        """Live replicas beyond what the catalog wants, each with the reason, in the order to end them."""
        found = []
        wanted = set()
        for model in self.catalog.models:
            for profile in model.profiles:
                key = (model.name, profile.name)
                wanted.add(key)
                live = self.by_profile.get(key, [])
                count = self._counted(live)
                if count > profile.replicas:
                    why = f"{profile.replicas} wanted, {count} there"
                    found += [(replica, why) for replica in self._surplus_first(live)[: count - profile.replicas]]
        return found + [
            (replica, "the catalog does not have it any more")
            for key, live in self.by_profile.items()
            if key not in wanted
            for replica in live
        ]

    @cached_property
    def short(self) -> list[tuple[str, Profile, int]]:
        """(model, profile, how many replicas are lacking), largest gangs first."""
        found = []
        for model in self.catalog.models:
            for profile in model.profiles:
                lacking = profile.replicas - self._counted(self.by_profile.get((model.name, profile.name), []))
                if lacking > 0:
                    found.append((model.name, profile, lacking))
        found.sort(key=lambda item: (-item[1].nodes, -item[1].gpus_per_node, item[0], item[1].name))
        return found

    def leaving(self, replica: Replica) -> str | None:
        """`leaving_reason`, found once."""
        if (
            replica.restart_by is None
            and not self._any_drains
            and self._forms.get((replica.model, replica.profile)) == replica.profile_hash
        ):
            return None
        if replica.replica_id not in self._leaving:
            self._leaving[replica.replica_id] = leaving_reason(self.fleet, self.catalog, replica)
        return self._leaving[replica.replica_id]

    def replacement_of(self, replica: Replica) -> Replica | None:
        """The live replica that was started to take this one's place, or None."""
        return self.replacements.get(replica.replica_id)

    def contested(self, replica: Replica) -> bool:
        """True while another replica holds, or was promised, one of its GPUs."""
        return any(
            holder != replica.replica_id
            for seat in replica.seats.values()
            for gpu in seat.gpus
            for holder in self._holders.get((seat.node_id, gpu), ())
        )

    def shards_on(self, node_id: str) -> list[tuple[Replica, Shard]]:
        """Every shard on a node that is not over, with its replica."""
        return self._by_node.get(node_id, [])

    def surplus_of(self, model: str, profile: Profile) -> int:
        """How many of a profile's live replicas are too many; negative when some are lacking."""
        return self._counted(self.by_profile.get((model, profile.name), [])) - profile.replicas

    def _counted(self, live: list[Replica]) -> int:
        # A replacement counts together with its original only while that must still leave: a drain that was
        # taken back, or a profile that was changed back, makes the replacement surplus.
        pairs = sum(
            1 for replica in live if replica.replica_id in self.replacements and self.leaving(replica) is not None
        )
        return len(live) - pairs

    def _surplus_first(self, live: list[Replica]) -> list[Replica]:
        """Whom to end first when there are too many.

        Those that do not serve, then those that came back, then those that must leave anyway, then the newest.
        """
        return sorted(
            live,
            key=lambda replica: (
                replica.state is ReplicaState.READY,
                not replica.returned,
                self.leaving(replica) is None,
                -replica.created_at,
                replica.replica_id,
            ),
        )

    @cached_property
    def _any_drains(self) -> bool:
        return any(node.draining for node in self.fleet.nodes.values())

    @cached_property
    def _forms(self) -> dict[ProfileKey, str]:
        """The form that the catalog wants of each profile."""
        return {
            (model.name, profile): form
            for model in self.catalog.models
            for profile, form in model.profile_hashes.items()
        }

    @cached_property
    def _holders(self) -> dict[tuple[str, str], list[str]]:
        """(node id, GPU) → replicas that hold it or were promised it."""
        holders: dict[tuple[str, str], list[str]] = {}
        for replica in self.fleet.replicas.values():
            for rank, seat in replica.seats.items():
                shard = replica.shards.get(rank)
                if shard.holds_gpus if shard is not None else replica.live:
                    for gpu in seat.gpus:
                        holders.setdefault((seat.node_id, gpu), []).append(replica.replica_id)
        return holders

    @cached_property
    def _by_node(self) -> dict[str, list[tuple[Replica, Shard]]]:
        by_node: dict[str, list[tuple[Replica, Shard]]] = {}
        for replica in self.fleet.replicas.values():
            for shard in replica.shards.values():
                if not shard.over:
                    by_node.setdefault(shard.node_id, []).append((replica, shard))
        return by_node


def leaving_reason(fleet: Fleet, catalog: Catalog, replica: Replica) -> str | None:
    """Why this replica must be replaced though it is healthy, or None."""
    for node_id in replica.node_ids:
        node: Node | None = fleet.nodes.get(node_id)
        if node is not None and node.draining:
            return f"{node_id} is draining"
    found = catalog.find(replica.model, replica.profile)
    if found is not None:
        form = found[0].profile_hashes[replica.profile]
        stopped = fleet.stopped_rollouts.get((replica.model, replica.profile)) == form
        if form != replica.profile_hash and not stopped:
            return "its profile has changed"
    if replica.restart_by is not None:
        return f"restart asked for by {replica.restart_by}"
    return None


def replacement_of(fleet: Fleet, replica: Replica) -> Replica | None:
    """The live replica that was started to take this one's place, or None."""
    for other in fleet.replicas.values():
        if other.replaces == replica.replica_id and other.live:
            return other
    return None
