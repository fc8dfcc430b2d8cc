"""The core's one question: given the fleet, the catalog and the time, what is to be done now?

`reconcile` is pure and answers with the first stage that has something to do; the caller carries the answer
out and asks again until there is none. Everything is first sorted into the named sets of `sets.py`; the stages
decide on those. Their order is the order of trust: first who is there, then what runs, then what should. The
vocabulary is in this folder's README.
"""

from __future__ import annotations

from collections.abc import Callable

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.actions import (
    Action,
    AdoptReplica,
    DrainReplica,
    DropInherited,
    FailReplica,
    ReapReplica,
    ReplicaReady,
    ResumeReplica,
    SendStop,
    StartReplica,
    StartWorkers,
    StopReplica,
)
from llmgw.fleet.distrust import judge_rollouts, judge_trust
from llmgw.fleet.health import judge_replicas
from llmgw.fleet.liveness import end_settling, judge_nodes
from llmgw.fleet.model import COMMANDED, LOST, Backoff, Fleet, NodeState, Replica, ReplicaState
from llmgw.fleet.outages import judge_outages
from llmgw.fleet.placement import choose_seats
from llmgw.fleet.room import Room, Wanted
from llmgw.fleet.sets import Sets
from llmgw.fleet.settings import FleetSettings

STARTS_MAX = 200
"""Replicas that one answer starts because they are lacking; the rest is in the next. An empty fleet of 500 nodes
is filled in steps of some tens of milliseconds each, between which the caller may do other things."""

NewId = Callable[[str], str]
"""Model name → a replica id that was never used before."""


def reconcile(fleet: Fleet, catalog: Catalog, now: float, settings: FleetSettings, new_id: NewId) -> list[Action]:
    """The next actions, or none when the fleet is as the catalog wants it (or as near as it can be)."""
    sets = Sets.of(fleet, catalog)
    return (
        judge_nodes(sets, now, settings)
        or end_settling(fleet, now)
        or _returns(sets)
        or _adoptions(sets)
        or _failures(sets, now, settings)
        or judge_outages(fleet, now, settings)
        or judge_replicas(fleet, catalog, now, settings)
        or judge_trust(sets, now, settings)
        or judge_rollouts(sets)
        or _progress(sets)
        or _endings(sets, now, settings)
        or _unconfirmed_routes(sets, now, settings)
        or _replacements(sets, now, new_id)
        or _counts(sets, now, new_id)
    )


def _returns(sets: Sets) -> list[Action]:
    """Replicas that were given up and are back: resumed when their place is not taken, else reaped."""
    actions: list[Action] = []
    moving = models_in_motion(sets) if sets.reconnecting else set()
    for replica in sets.reconnecting:
        found = sets.catalog.find(replica.model, replica.profile)
        wanted = found[1].replicas if found is not None else 0
        others = sets.by_profile.get((replica.model, replica.profile), [])
        ready = sum(1 for other in others if other.state is ReplicaState.READY)
        if any(shard.phase == "stopping" for shard in replica.shards.values()):
            continue  # its engine died meanwhile, or was told to stop: what ends does not resume
        replacement = sets.replacement_of(replica)
        if replacement is not None and replacement.state is ReplicaState.READY and sets.leaving(replica):
            continue  # it was on its way out, and its place is taken
        if ready < wanted and not sets.contested(replica):
            # A move that began meanwhile goes first (invariant 7): then this one counts like any other.
            takes_over = _takes_over(sets, replica)
            actions.append(ResumeReplica(replica.replica_id, takes_over and replica.model in moving))
            if takes_over:
                moving.add(replica.model)
            # It may have been on its way out: then that begins anew, when no other of its model moves.
            if replacement is not None and replacement.state is ReplicaState.STARTING:
                actions.append(
                    StopReplica(replacement.replica_id, f"{replica.replica_id}, its original, is back")
                )
    return actions


def _adoptions(sets: Sets) -> list[Action]:
    """Reported replicas: adopted whole, and once settling is over not at all."""
    actions: list[Action] = []
    for replica in sets.adopting:
        if replica.whole and not sets.contested(replica):
            actions.append(AdoptReplica(replica.replica_id))
        elif not sets.fleet.settling:
            held = sum(1 for shard in replica.shards.values() if not shard.over)
            why = (
                "its GPUs are held by another replica"
                if replica.whole
                else f"only {held} of {replica.nodes} shards were reported when settling ended"
            )
            actions.append(FailReplica(replica.replica_id, f"not adopted: {why}", penalty=False))
        elif all(shard.over for shard in replica.shards.values()):
            actions.append(FailReplica(replica.replica_id, "not adopted: its shards ended", penalty=False))
    return actions


def _failures(sets: Sets, now: float, settings: FleetSettings) -> list[Action]:
    """A replica fails as a unit when any of its shards is over, lost, or never came to be."""
    actions: list[Action] = []
    for replica in sets.hurt:
        for rank, shard in sorted(replica.shards.items()):
            where = f"rank {rank} on {shard.node_id}"
            if shard.phase == LOST:
                reason = f"{shard.node_id} is lost"
                actions.append(FailReplica(replica.replica_id, reason, penalty=False, given_up=True))
            elif shard.over:
                reason = f"{where}: {shard.ending}"
                # The agent says when a shard failed by itself; one that was let go is nobody's fault.
                actions.append(FailReplica(replica.replica_id, reason, penalty=shard.phase == "failed"))
            elif shard.phase == COMMANDED and now - shard.since > settings.commanded_timeout_s:
                reason = f"{where}: its agent did not report it within {settings.commanded_timeout_s:.0f} s"
                actions.append(FailReplica(replica.replica_id, reason, penalty=False))
            else:
                continue
            break
        else:
            lost = [
                seat.node_id
                for rank, seat in replica.seats.items()
                if rank not in replica.shards and _is_lost(sets.fleet, seat.node_id)
            ]
            if lost:
                reason = f"{lost[0]} is lost"
                actions.append(FailReplica(replica.replica_id, reason, penalty=False, given_up=False))
    return actions


def _progress(sets: Sets) -> list[Action]:
    """Starting replicas: workers follow their leader, and all together become ready."""
    actions: list[Action] = []
    for replica in sets.starting:
        leader = replica.leader
        if leader is None:
            continue
        if len(replica.shards) < replica.nodes:
            if leader.rendezvous_port is not None:
                actions.append(StartWorkers(replica.replica_id))
        elif all(shard.phase == "ready" for shard in replica.shards.values()):
            actions.append(ReplicaReady(replica.replica_id))
    return actions


def _endings(sets: Sets, now: float, settings: FleetSettings) -> list[Action]:
    """Draining, stopping and failed replicas, and shards that nobody owns."""
    fleet = sets.fleet
    actions: list[Action] = []
    for replica in sets.ending:
        if replica.state is ReplicaState.DRAINING:
            if _idle(fleet, replica):
                actions.append(StopReplica(replica.replica_id, replica.reason or "drained"))
            elif now - replica.since > settings.drain_grace_s:
                reason = f"{replica.reason}; requests still ran after {settings.drain_grace_s:.0f} s"
                actions.append(StopReplica(replica.replica_id, reason))
        else:
            for shard in replica.shards.values():
                node = fleet.nodes.get(shard.node_id)
                if shard.over or shard.phase == LOST or node is None or node.session is None:
                    continue
                if shard.stop_session != node.session:
                    actions.append(SendStop(shard.node_id, shard.shard_id, replica.reason or "stopped"))
            ended = all(shard.over for shard in replica.shards.values())
            out_of_reach = all(shard.over or shard.phase == LOST for shard in replica.shards.values())
            if ended or (out_of_reach and not replica.reaped):
                actions.append(ReapReplica(replica.replica_id))
    for node_id, shard_id in sets.unrecognised:
        holder = fleet.nodes[node_id]
        if holder.session is not None and holder.disowned_sent.get(shard_id) != holder.session:
            actions.append(SendStop(node_id, shard_id, "no replica here owns it"))
    return actions


def _unconfirmed_routes(sets: Sets, now: float, settings: FleetSettings) -> list[Action]:
    """Routes of the previous server's table: over when settling is and the endpoint is silent."""
    fleet = sets.fleet
    if fleet.settling:
        return []
    actions: list[Action] = []
    for endpoint_id, inherited in fleet.inherited.items():
        replica = fleet.replicas.get(endpoint_id)
        if replica is not None and replica.state is not ReplicaState.ADOPTING:
            actions.append(DropInherited(endpoint_id, "its replica is known"))
        elif now - inherited.alive_at > settings.lost_after_s:
            actions.append(DropInherited(endpoint_id, "its node has not registered and it does not answer"))
    return actions


def _replacements(sets: Sets, now: float, new_id: NewId) -> list[Action]:
    """Planned moves: drains, changed profiles, restarts. One replica of a model at a time (invariant 7)."""
    fleet = sets.fleet
    if fleet.settling:
        return []
    actions: list[Action] = []
    room: Room | None = None
    moving = models_in_motion(sets)
    leaving = [replica for replica in (*sets.starting, *sets.serving) if sets.leaving(replica) is not None]
    order = {replica_id: at for at, replica_id in enumerate(fleet.replicas)} if leaving else {}
    for replica in sorted(leaving, key=lambda item: (item.created_at, order[item.replica_id])):
        reason = sets.leaving(replica)
        if reason is None:
            continue
        found = sets.catalog.find(replica.model, replica.profile)
        if found is None:
            continue  # not wanted at all: `_counts` drains it
        profile = found[1]
        replacement = sets.replacement_of(replica)
        if replica.state is ReplicaState.STARTING:
            # It serves nobody yet: starting it anew elsewhere costs less than waiting for it.
            actions.append(StopReplica(replica.replica_id, reason))
        elif replacement is not None and replacement.state is ReplicaState.READY:
            actions.append(DrainReplica(replica.replica_id, f"{reason}; replaced by {replacement.replica_id}"))
        elif forced(fleet, replica):
            actions.append(DrainReplica(replica.replica_id, f"{reason} (forced)"))
        elif replacement is None and replica.model not in moving:
            if sets.surplus_of(replica.model, profile) > 0:
                continue  # one too many as it is: `_counts` ends those that must leave before others
            if profile.stop_first:
                moving.add(replica.model)
                actions.append(DrainReplica(replica.replica_id, f"{reason} (stop_first)"))
                continue
            if _held_back(fleet, found[0], profile, now):
                continue
            if room is None:
                room = Room.of(fleet)
            chosen = choose_seats(fleet, Wanted(replica.model, profile), room)
            if chosen is None:
                continue  # left serving; `explain` and `nodes` say why
            moving.add(replica.model)
            room.take(fleet, replica.model, profile.nodes, chosen.seats)
            actions.append(
                StartReplica(
                    new_id(replica.model),
                    replica.model,
                    profile.name,
                    chosen.seats,
                    chosen.fabric,
                    replica.replica_id,
                )
            )
    return actions


def _counts(sets: Sets, now: float, new_id: NewId) -> list[Action]:
    """Too few: start, largest gangs first. Too many: drain. Never while settling."""
    fleet = sets.fleet
    if fleet.settling:
        return []
    actions: list[Action] = [_end(replica, why) for replica, why in sets.surplus]
    room: Room | None = None
    for name, profile, count in sets.short:
        if _held_back(fleet, sets.catalog.by_name[name], profile, now):
            continue
        if room is None:
            room = Room.of(fleet)
        for _ in range(count):
            if len(actions) >= STARTS_MAX:
                return actions
            chosen = choose_seats(fleet, Wanted(name, profile), room)
            if chosen is None:
                break
            room.take(fleet, name, profile.nodes, chosen.seats)
            actions.append(StartReplica(new_id(name), name, profile.name, chosen.seats, chosen.fabric, None))
    return actions


def models_in_motion(sets: Sets) -> set[str]:
    """Models of which a replica is being moved: the next one of them waits (invariant 7)."""
    moving = {replica.model for replica in sets.draining}
    replicas = sets.fleet.replicas.values()
    return moving | {replica.model for replica in replicas if replica.live and _takes_over(sets, replica)}


def _takes_over(sets: Sets, replica: Replica) -> bool:
    """True when it is to take the place of a replica that is live and must leave."""
    original = sets.fleet.replicas.get(replica.replaces) if replica.replaces is not None else None
    return original is not None and original.live and sets.leaving(original) is not None


def forced(fleet: Fleet, replica: Replica) -> bool:
    """True when a node of it is drained by force: it waits for no replacement."""
    return any(
        (node := fleet.nodes.get(node_id)) is not None and node.draining and node.drain_forced
        for node_id in replica.node_ids
    )


def _end(replica: Replica, reason: str) -> Action:
    if replica.state is ReplicaState.READY:
        return DrainReplica(replica.replica_id, reason)
    return StopReplica(replica.replica_id, reason)


def _idle(fleet: Fleet, replica: Replica) -> bool:
    """Every live router has acknowledged a table without the replica and has no request on it."""
    if replica.withdrawn is None:
        return False
    for router in fleet.routers.values():
        if router.acked is None or router.acked.epoch != replica.withdrawn.epoch:
            return False
        if router.acked.number < replica.withdrawn.number or router.in_flight.get(replica.replica_id, 0):
            return False
    return True


def backoff_of(fleet: Fleet, model: CatalogModel, profile: Profile) -> Backoff | None:
    """What failures of the profile hold it back; those of a form that it had before do not."""
    backoff = fleet.backoff.get((model.name, profile.name))
    if backoff is None or backoff.profile_hash != model.profile_hashes[profile.name]:
        return None
    return backoff


def _held_back(fleet: Fleet, model: CatalogModel, profile: Profile, now: float) -> bool:
    backoff = backoff_of(fleet, model, profile)
    return backoff is not None and now < backoff.not_before


def _is_lost(fleet: Fleet, node_id: str) -> bool:
    node = fleet.nodes.get(node_id)
    return node is None or node.state is NodeState.LOST
