"""The core's one question: given the fleet, the catalog and the time, what is to be done now?

`reconcile` is pure and answers with the first stage that has something to do; the caller carries the answer
out and asks again until there is none. The order of the stages is the order of trust: first who is there, then
what runs, then what should. The vocabulary is in this folder's README.
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
from llmgw.fleet.liveness import end_settling, judge_nodes
from llmgw.fleet.model import COMMANDED, LOST, Backoff, Fleet, NodeState, Replica, ReplicaState
from llmgw.fleet.placement import Room, Wanted, place
from llmgw.fleet.settings import FleetSettings

NewId = Callable[[str], str]
"""Model name → a replica id that was never used before."""


def reconcile(fleet: Fleet, catalog: Catalog, now: float, settings: FleetSettings, new_id: NewId) -> list[Action]:
    """The next actions, or none when the fleet is as the catalog wants it (or as near as it can be)."""
    return (
        judge_nodes(fleet, now, settings)
        or end_settling(fleet, now)
        or _returns(fleet, catalog)
        or _adoptions(fleet)
        or _failures(fleet, now, settings)
        or _progress(fleet)
        or _endings(fleet, now, settings)
        or _unconfirmed_routes(fleet, now, settings)
        or _replacements(fleet, catalog, now, settings, new_id)
        or _counts(fleet, catalog, now, settings, new_id)
    )


def _returns(fleet: Fleet, catalog: Catalog) -> list[Action]:
    """Replicas that were given up and are back: resumed when their place is not taken, else reaped."""
    actions: list[Action] = []
    for replica in fleet.replicas.values():
        if not (replica.state is ReplicaState.FAILED and replica.returned and replica.whole):
            continue
        found = catalog.find(replica.model, replica.profile)
        wanted = found[1].replicas if found is not None else 0
        ready = sum(1 for other in _of_profile(fleet, replica) if other.state is ReplicaState.READY)
        if ready < wanted and not _contested(fleet, replica):
            actions.append(ResumeReplica(replica.replica_id))
    return actions


def _adoptions(fleet: Fleet) -> list[Action]:
    """Reported replicas: adopted whole, and once settling is over not at all."""
    actions: list[Action] = []
    for replica in fleet.replicas.values():
        if replica.state is not ReplicaState.ADOPTING:
            continue
        if replica.whole and not _contested(fleet, replica):
            actions.append(AdoptReplica(replica.replica_id))
        elif not fleet.settling:
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


def _failures(fleet: Fleet, now: float, settings: FleetSettings) -> list[Action]:
    """A replica fails as a unit when any of its shards is over, lost, or never came to be."""
    actions: list[Action] = []
    for replica in fleet.replicas.values():
        if replica.state not in (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING):
            continue
        for rank, shard in sorted(replica.shards.items()):
            where = f"rank {rank} on {shard.node_id}"
            if shard.phase == LOST:
                reason = f"{shard.node_id} is lost"
                actions.append(FailReplica(replica.replica_id, reason, penalty=False, given_up=True))
            elif shard.over:
                reason = f"{where}: {shard.reason or shard.phase}"
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
                if rank not in replica.shards and _is_lost(fleet, seat.node_id)
            ]
            if lost:
                reason = f"{lost[0]} is lost"
                actions.append(FailReplica(replica.replica_id, reason, penalty=False, given_up=False))
    return actions


def _progress(fleet: Fleet) -> list[Action]:
    """Starting replicas: workers follow their leader, and all together become ready."""
    actions: list[Action] = []
    for replica in fleet.replicas.values():
        if replica.state is not ReplicaState.STARTING:
            continue
        leader = replica.leader
        if leader is None:
            continue
        if len(replica.shards) < replica.nodes:
            if leader.rendezvous_port is not None:
                actions.append(StartWorkers(replica.replica_id))
        elif all(shard.phase == "ready" for shard in replica.shards.values()):
            actions.append(ReplicaReady(replica.replica_id))
    return actions


def _endings(fleet: Fleet, now: float, settings: FleetSettings) -> list[Action]:
    """Draining, stopping and failed replicas, and shards that nobody owns."""
    actions: list[Action] = []
    for replica in fleet.replicas.values():
        if replica.state is ReplicaState.DRAINING:
            if _idle(fleet, replica):
                actions.append(StopReplica(replica.replica_id, replica.reason or "drained"))
            elif now - replica.since > settings.drain_grace_s:
                reason = f"{replica.reason}; requests still ran after {settings.drain_grace_s:.0f} s"
                actions.append(StopReplica(replica.replica_id, reason))
        elif replica.state in (ReplicaState.STOPPING, ReplicaState.FAILED):
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
    for node in fleet.nodes.values():
        if node.session is None:
            continue
        actions += [
            SendStop(node.node_id, shard_id, "no replica here owns it")
            for shard_id in node.disowned
            if node.disowned_sent.get(shard_id) != node.session
        ]
    return actions


def _unconfirmed_routes(fleet: Fleet, now: float, settings: FleetSettings) -> list[Action]:
    """Routes of the previous server's table: over when settling is and the endpoint is silent."""
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


def _replacements(
    fleet: Fleet, catalog: Catalog, now: float, settings: FleetSettings, new_id: NewId
) -> list[Action]:
    """Planned moves: drains, changed profiles, restarts. One replica of a model at a time (invariant 7)."""
    if fleet.settling:
        return []
    actions: list[Action] = []
    room: Room | None = None
    moving = _models_in_motion(fleet, catalog)
    for replica in sorted(fleet.replicas.values(), key=lambda item: item.created_at):
        if not replica.live or replica.state is ReplicaState.ADOPTING:
            continue
        reason = leaving_reason(fleet, catalog, replica)
        if reason is None:
            continue
        found = catalog.find(replica.model, replica.profile)
        if found is None:
            continue  # not wanted at all: `_counts` drains it
        profile = found[1]
        forced = any(
            (node := fleet.nodes.get(node_id)) is not None and node.draining and node.drain_forced
            for node_id in replica.node_ids
        )
        replacement = replacement_of(fleet, replica)
        if replica.state is ReplicaState.STARTING:
            # It serves nobody yet: starting it anew elsewhere costs less than waiting for it.
            actions.append(StopReplica(replica.replica_id, reason))
        elif replacement is not None and replacement.state is ReplicaState.READY:
            actions.append(DrainReplica(replica.replica_id, f"{reason}; replaced by {replacement.replica_id}"))
        elif forced:
            actions.append(DrainReplica(replica.replica_id, f"{reason} (forced)"))
        elif replacement is None and replica.model not in moving:
            if profile.stop_first:
                moving.add(replica.model)
                actions.append(DrainReplica(replica.replica_id, f"{reason} (stop_first)"))
                continue
            if _held_back(fleet, found[0], profile, now):
                continue
            if room is None:
                room = Room.of(fleet)
            verdict = place(fleet, Wanted(replica.model, profile), room)
            if verdict.seats is None:
                continue  # left serving; `explain` and `nodes` say why
            moving.add(replica.model)
            room.take(fleet, replica.model, profile.nodes, verdict.seats)
            actions.append(
                StartReplica(
                    new_id(replica.model),
                    replica.model,
                    profile.name,
                    verdict.seats,
                    verdict.fabric,
                    replica.replica_id,
                )
            )
    return actions


def _counts(fleet: Fleet, catalog: Catalog, now: float, settings: FleetSettings, new_id: NewId) -> list[Action]:
    """Too few: start, largest gangs first. Too many: drain. Never while settling."""
    if fleet.settling:
        return []
    actions: list[Action] = []
    by_profile: dict[tuple[str, str], list[Replica]] = {}
    for replica in fleet.replicas.values():
        if replica.live:
            by_profile.setdefault((replica.model, replica.profile), []).append(replica)
    missing: list[tuple[str, Profile, int]] = []
    for model in catalog.models:
        for profile in model.profiles:
            live = by_profile.pop((model.name, profile.name), [])
            # A replacement counts together with its original only while that must still leave: a drain that was
            # taken back, or a profile that was changed back, makes the replacement surplus.
            pairs = sum(
                1
                for replica in live
                if replacement_of(fleet, replica) is not None
                and leaving_reason(fleet, catalog, replica) is not None
            )
            surplus = len(live) - pairs - profile.replicas
            if surplus > 0:
                why = f"{profile.replicas} wanted, {len(live) - pairs} there"
                actions += [_end(replica, why) for replica in _surplus_first(fleet, catalog, live)[:surplus]]
            elif surplus < 0 and not _held_back(fleet, model, profile, now):
                missing.append((model.name, profile, -surplus))
    actions += [
        _end(replica, "the catalog does not have it any more") for live in by_profile.values() for replica in live
    ]
    if not missing:
        return actions
    room = Room.of(fleet)
    missing.sort(key=lambda item: (-item[1].nodes, -item[1].gpus_per_node, item[0], item[1].name))
    for name, profile, count in missing:
        for _ in range(count):
            verdict = place(fleet, Wanted(name, profile), room)
            if verdict.seats is None:
                break
            room.take(fleet, name, profile.nodes, verdict.seats)
            actions.append(StartReplica(new_id(name), name, profile.name, verdict.seats, verdict.fabric, None))
    return actions


def leaving_reason(fleet: Fleet, catalog: Catalog, replica: Replica) -> str | None:
    """Why this replica must be replaced though it is healthy, or None."""
    for node_id in replica.node_ids:
        node = fleet.nodes.get(node_id)
        if node is not None and node.draining:
            return f"{node_id} is draining"
    found = catalog.find(replica.model, replica.profile)
    if found is not None and found[0].profile_hashes[replica.profile] != replica.profile_hash:
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


def _models_in_motion(fleet: Fleet, catalog: Catalog) -> set[str]:
    moving = set()
    for replica in fleet.replicas.values():
        if replica.state is ReplicaState.DRAINING:
            moving.add(replica.model)
        elif replica.live and replica.replaces is not None:
            original = fleet.replicas.get(replica.replaces)
            if original is not None and original.live and leaving_reason(fleet, catalog, original) is not None:
                moving.add(replica.model)
    return moving


def _surplus_first(fleet: Fleet, catalog: Catalog, live: list[Replica]) -> list[Replica]:
    """Whom to end first when there are too many.

    Those that do not serve, then those that came back, then those that must leave anyway, then the newest.
    """
    return sorted(
        live,
        key=lambda replica: (
            replica.state is ReplicaState.READY,
            not replica.returned,
            leaving_reason(fleet, catalog, replica) is None,
            -replica.created_at,
            replica.replica_id,
        ),
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


def _of_profile(fleet: Fleet, replica: Replica) -> list[Replica]:
    return [
        other
        for other in fleet.replicas.values()
        if other is not replica
        and (other.model, other.profile) == (replica.model, replica.profile)
        and other.live
    ]


def _contested(fleet: Fleet, replica: Replica) -> bool:
    for other in fleet.replicas.values():
        if other is replica:
            continue
        for rank, seat in other.seats.items():
            shard = other.shards.get(rank)
            if not (shard.holds_gpus if shard is not None else other.live):
                continue
            for own in replica.seats.values():
                if own.node_id == seat.node_id and set(own.gpus) & set(seat.gpus):
                    return True
    return False


def _is_lost(fleet: Fleet, node_id: str) -> bool:
    node = fleet.nodes.get(node_id)
    return node is None or node.state is NodeState.LOST
