"""Makes an action happen in the fleet, and says what must be sent and what history keeps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.actions import (
    Action,
    AdoptReplica,
    CutOff,
    DoubtSilence,
    DrainReplica,
    DropInherited,
    EndDoubt,
    EndOutage,
    EndSettling,
    FailReplica,
    NodeLost,
    NodeUnreachable,
    ReapReplica,
    ReplicaReady,
    ResumeReplica,
    ReturnReplica,
    SendStop,
    SetOutage,
    StartReplica,
    StartWorkers,
    StopReplica,
    StopRollout,
    SuspectNode,
    SuspendReplica,
    TrustNode,
)
from llmgw.fleet.events import Event, node_event, replica_event
from llmgw.fleet.health import EVICTION_WINDOW_S
from llmgw.fleet.liveness import suspiciously_silent
from llmgw.fleet.model import (
    GONE,
    LOST,
    Backoff,
    Fleet,
    NodeState,
    Outage,
    Replica,
    ReplicaState,
    Shard,
    shard_id_of,
)
from llmgw.fleet.outages import ports_in_use
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import Rendezvous, ShardSpec

FAILURES_KEPT = 50


@dataclass(slots=True)
class Effects:
    """What follows from actions: starts and stops to send, in order, and events to keep."""

    starts: list[tuple[str, ShardSpec]] = field(default_factory=list)
    """(node id, spec)."""
    stops: list[tuple[str, str, str]] = field(default_factory=list)
    """(node id, shard id, reason)."""
    rollbacks: list[StopRollout] = field(default_factory=list)
    """Profiles whose new form must go: the catalog's keeper makes a revision of it."""
    events: list[Event] = field(default_factory=list)


def carry_out(
    fleet: Fleet, catalog: Catalog, action: Action, now: float, settings: FleetSettings, effects: Effects
) -> None:
    """Change the fleet as the action says; add to `effects`. Actions about what is gone already do nothing."""
    match action:
        case EndSettling(reason):
            fleet.settling_until = None
            effects.events.append(Event("server", "settling", "over", reason))
        case NodeUnreachable(node_id, reason):
            _set_node(fleet, node_id, NodeState.UNREACHABLE, reason, now, effects)
        case NodeLost(node_id, reason):
            _lose_node(fleet, node_id, reason, now, effects)
        case DoubtSilence(node_ids, reason):
            fleet.doubted, fleet.doubted_at = frozenset(node_ids), now
            effects.events.append(Event("server", "liveness", "silence doubted", reason, nodes=node_ids))
        case EndDoubt(reason):
            # Also for those that fell silent after the first were counted: it was the same fault on this side.
            for node in fleet.nodes.values():
                if node.node_id in fleet.doubted or suspiciously_silent(node, now, settings):
                    node.lost_not_before = now + settings.reconnect_max_s + settings.lost_after_s
            fleet.doubted = frozenset()
            effects.events.append(Event("server", "liveness", "silence believed again", reason))
        case SuspectNode(node_id, reason):
            fleet.nodes[node_id].suspect = reason
            effects.events.append(node_event(node_id, "suspect", reason))
        case TrustNode(node_id, reason):
            fleet.nodes[node_id].suspect = None
            effects.events.append(node_event(node_id, "trusted again", reason))
        case StopRollout(model, profile, bad_form, _, reason):
            fleet.stopped_rollouts[model, profile] = bad_form
            effects.rollbacks.append(action)
            effects.events.append(Event("catalog", f"{model}/{profile}", "rollout stopped", reason, model))
        case DropInherited(endpoint_id, reason):
            inherited = fleet.inherited.pop(endpoint_id, None)
            if inherited is not None and endpoint_id not in fleet.replicas:
                effects.events.append(Event("replica", endpoint_id, "route withdrawn", reason, inherited.model))
        case SendStop(node_id, shard_id, reason):
            _send_stop(fleet, node_id, shard_id, reason, effects)
        case StartReplica():
            _start_replica(fleet, catalog, action, now, effects)
        case _:
            replica = fleet.replicas.get(action.replica_id)
            if replica is not None:
                _on_replica(fleet, replica, action, now, settings, effects)


def forget_node(fleet: Fleet, node_id: str, now: float) -> None:
    """Take a node out of the fleet with everything that was believed to run there."""
    for _, shard in fleet.shards_on(node_id):
        shard.phase, shard.since, shard.reason = GONE, now, f"{node_id} was removed"
    fleet.nodes.pop(node_id, None)


def _on_replica(
    fleet: Fleet,
    replica: Replica,
    action: Action,
    now: float,
    settings: FleetSettings,
    effects: Effects,
) -> None:
    match action:
        case AdoptReplica():
            leader = replica.leader
            ready = leader is not None and leader.phase == "ready"
            replica.was_ready = replica.was_ready or ready
            replica.ready_at = now if ready else None
            replica.witnessed_at = max(replica.witnessed_at, now) if ready else replica.witnessed_at
            state = ReplicaState.READY if ready else ReplicaState.STARTING
            _set(replica, state, now, effects, event="adopted", reason=f"running as reported; {state}")
            replica.ports = ports_in_use(fleet, replica)
            fleet.inherited.pop(replica.replica_id, None)
        case ResumeReplica(_, for_itself):
            leader = replica.leader
            ready = leader is not None and leader.phase == "ready"
            replica.ports = {**ports_in_use(fleet, replica), **replica.ports}
            replica.outage = None
            replica.given_up, replica.reaped, replica.ready_at = False, False, now if ready else None
            replica.witnessed_at = now if ready else replica.witnessed_at
            if for_itself:
                replica.replaces = None
            state = ReplicaState.READY if ready else ReplicaState.STARTING
            _set(replica, state, now, effects, event="resumed", reason="its node is back before its replacement")
        case StartWorkers():
            _start_workers(fleet, replica, now, effects)
        case ReplicaReady():
            replica.was_ready, replica.ready_at, replica.witnessed_at = True, now, now
            _set(replica, ReplicaState.READY, now, effects, reason="the leader answered a request")
        case SuspendReplica(_, reason):
            replica.suspended, replica.suspended_at = reason, now
            effects.events.append(replica_event(replica, "out of rotation", reason))
        case ReturnReplica():
            replica.suspended = None
            effects.events.append(replica_event(replica, "back in rotation", "it shows progress again"))
        case SetOutage(_, node_ids, reason):
            if replica.outage is None:
                replica.outage = Outage(now, node_ids, reason)
                effects.events.append(replica_event(replica, "fabric down", reason))
            else:
                replica.outage = replace(replica.outage, nodes=node_ids, reason=reason)
        case CutOff():
            if replica.outage is not None:
                down_s, why = now - replica.outage.since, replica.outage.reason
                replica.outage = replace(replica.outage, out_since=now)
                reason = f"out of the rotation, since {replica.fabric} has been down for {down_s:.0f} s: {why}"
                effects.events.append(replica_event(replica, "cut off", reason))
        case EndOutage():
            was_out = replica.outage is not None and replica.outage.out_since is not None
            replica.outage = None
            replica.ports = {**ports_in_use(fleet, replica), **replica.ports}
            reason = f"{replica.fabric} is up again on all its nodes"
            reason += ", and it is back in the rotation" if was_out else ""
            effects.events.append(replica_event(replica, "fabric up", reason))
        case FailReplica(_, reason, penalty, given_up, evicted):
            if evicted:
                fleet.evictions = [at for at in fleet.evictions if now - at < EVICTION_WINDOW_S] + [now]
            if penalty:
                _penalise(fleet, replica, reason, now, settings)
                _blame_nodes(fleet, replica, now)
            # That it came back once is no reason to resume it after another failure.
            replica.given_up, replica.returned = given_up, False
            _set(replica, ReplicaState.FAILED, now, effects, reason=reason)
            fleet.inherited.pop(replica.replica_id, None)
        case DrainReplica(_, reason):
            replica.withdrawn = None
            _set(replica, ReplicaState.DRAINING, now, effects, reason=reason)
        case StopReplica(_, reason):
            _set(replica, ReplicaState.STOPPING, now, effects, reason=reason)
        case ReapReplica():
            _reap(fleet, replica, effects)


def _set(
    replica: Replica, state: ReplicaState, now: float, effects: Effects, *, reason: str, event: str | None = None
) -> None:
    replica.state, replica.since, replica.reason = state, now, reason
    effects.events.append(replica_event(replica, event or state.value, reason))


def _set_node(fleet: Fleet, node_id: str, state: NodeState, reason: str, now: float, effects: Effects) -> None:
    node = fleet.nodes[node_id]
    node.state, node.since, node.reason = state, now, reason
    effects.events.append(node_event(node_id, state.value, reason))


def _lose_node(fleet: Fleet, node_id: str, reason: str, now: float, effects: Effects) -> None:
    _set_node(fleet, node_id, NodeState.LOST, reason, now, effects)
    node = fleet.nodes[node_id]
    # Whatever it says next must be a whole registration.
    node.session = None
    for _, shard in fleet.shards_on(node_id):
        shard.phase, shard.since, shard.reason = LOST, now, f"{node_id} is lost"


def _start_replica(fleet: Fleet, catalog: Catalog, action: StartReplica, now: float, effects: Effects) -> None:
    found = catalog.find(action.model, action.profile)
    if found is None:
        return
    model, profile = found
    replica = Replica(
        replica_id=action.replica_id,
        model=model.name,
        profile=profile.name,
        profile_hash=model.profile_hashes[profile.name],
        nodes=profile.nodes,
        engine=profile.engine,
        state=ReplicaState.STARTING,
        since=now,
        created_at=now,
        seats=dict(enumerate(action.seats)),
        fabric=action.fabric,
        replaces=action.replaces,
    )
    replica.ports = ports_in_use(fleet, replica)
    fleet.replicas[replica.replica_id] = replica
    reason = f"replaces {action.replaces}" if action.replaces else "wanted by the catalog"
    replica.reason = reason
    effects.events.append(replica_event(replica, "starting", reason))
    _send_start(replica, 0, _leader_spec(model, profile, replica), now, effects)


def _start_workers(fleet: Fleet, replica: Replica, now: float, effects: Effects) -> None:
    leader = replica.leader
    node = fleet.nodes.get(leader.node_id) if leader is not None else None
    if leader is None or leader.rendezvous_port is None or node is None or node.address is None:
        return
    meet = Rendezvous(host=node.address, port=leader.rendezvous_port)
    for rank in range(1, replica.nodes):
        if rank not in replica.shards:
            # From the leader's spec, not from the catalog, which may have changed since: a gang is of one form.
            spec = msgspec.structs.replace(
                leader.spec,
                shard_id=shard_id_of(replica.replica_id, rank),
                rank=rank,
                gpus=list(replica.seats[rank].gpus),
                rendezvous=meet,
            )
            _send_start(replica, rank, spec, now, effects)


def _send_start(replica: Replica, rank: int, spec: ShardSpec, now: float, effects: Effects) -> None:
    node_id = replica.seats[rank].node_id
    replica.shards[rank] = Shard(spec=spec, node_id=node_id, since=now)
    effects.starts.append((node_id, spec))


def _send_stop(fleet: Fleet, node_id: str, shard_id: str, reason: str, effects: Effects) -> None:
    node = fleet.nodes.get(node_id)
    if node is None or node.session is None:
        return
    found = fleet.shard(shard_id)
    if found is not None and found[1].node_id == node_id:
        found[1].stop_session = node.session
    if shard_id in node.disowned:
        node.disowned_sent[shard_id] = node.session
        effects.events.append(node_event(node_id, "disowned", f"{shard_id}: {reason}"))
    effects.stops.append((node_id, shard_id, reason))


def _penalise(fleet: Fleet, replica: Replica, reason: str, now: float, settings: FleetSettings) -> None:
    key = (replica.model, replica.profile)
    backoff = fleet.backoff.get(key)
    ran_long = replica.ready_at is not None and now - replica.ready_at >= settings.backoff_reset_s
    if backoff is None or ran_long or backoff.profile_hash != replica.profile_hash:
        backoff = fleet.backoff[key] = Backoff(profile_hash=replica.profile_hash)
    backoff.failures += 1
    backoff.reason, backoff.replica_id = reason, replica.replica_id
    # The first failure of a replica that had served is tried again at once; everything else waits.
    doublings = backoff.failures - (2 if replica.was_ready else 1)
    wait_s = (
        0.0
        if doublings < 0
        else min(settings.backoff_first_s * 2.0 ** min(doublings, 20), settings.backoff_max_s)
    )
    backoff.not_before = now + wait_s


def _blame_nodes(fleet: Fleet, replica: Replica, now: float) -> None:
    for shard in replica.shards.values():
        node = fleet.nodes.get(shard.node_id)
        if shard.phase == "failed" and node is not None:
            node.failures = [*node.failures[-(FAILURES_KEPT - 1) :], (now, (replica.model, replica.profile))]


def _reap(fleet: Fleet, replica: Replica, effects: Effects) -> None:
    if not replica.reaped:
        replica.reaped = True
        word = "reaped" if replica.state is ReplicaState.FAILED else "stopped"
        lost = [shard.node_id for shard in replica.shards.values() if shard.phase == LOST]
        reason = (
            f"nothing is left of it, except what {', '.join(lost)} may hold" if lost else "nothing is left of it"
        )
        effects.events.append(replica_event(replica, word, reason))
    if all(shard.over for shard in replica.shards.values()):
        fleet.replicas.pop(replica.replica_id, None)


def _leader_spec(model: CatalogModel, profile: Profile, replica: Replica) -> ShardSpec:
    return ShardSpec(
        shard_id=shard_id_of(replica.replica_id, 0),
        replica_id=replica.replica_id,
        model=model.name,
        profile=profile.name,
        profile_hash=replica.profile_hash,
        served_names=model.served_names,
        rank=0,
        nodes=profile.nodes,
        gpus=list(replica.seats[0].gpus),
        engine=profile.engine,
        source=model.source,
        task=model.task,
        tensor_parallel=profile.tensor_parallel_size,
        pipeline_parallel=profile.pipeline_parallel,
        args=profile.args,
        env=profile.env,
        fabric=replica.fabric,
        checksum=model.checksum,
        fetch_timeout_s=profile.fetch_timeout,
        fetch_stall_limit_s=profile.fetch_stall_limit,
        rendezvous_timeout_s=profile.rendezvous_timeout,
        load_timeout_s=profile.load_timeout,
        stop_timeout_s=profile.stop_timeout,
    )
