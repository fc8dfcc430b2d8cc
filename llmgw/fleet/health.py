"""Hung is not busy (DESIGN.md section 6): life is progress, and a 200 is never proof.

A ready replica that has work and makes no progress leaves the rotation, reversibly; it is failed only when
probes go unanswered as well, for as long as its longest prefill may take. Progress is what anybody saw: bytes
of an answer, the engine's own token counters moving, or a one-token request answered.
"""

from __future__ import annotations

from llmgw.config.catalog import Catalog
from llmgw.fleet.actions import Action, FailReplica, ReturnReplica, SuspendReplica
from llmgw.fleet.model import Fleet, NodeState, Replica, ReplicaState
from llmgw.fleet.settings import FleetSettings

EVICTION_WINDOW_S = 60.0
EVICTIONS_MIN = 2
EVICTIONS_SHARE = 0.1


def judge_replicas(fleet: Fleet, catalog: Catalog, now: float, settings: FleetSettings) -> list[Action]:
    """Ready replicas that stall, that work again, or that are beyond hope (capped by invariant 11)."""
    actions: list[Action] = []
    allowed = evictions_allowed(fleet, now)
    for replica in fleet.replicas.values():
        if replica.state is not ReplicaState.READY:
            continue
        if replica.suspended is None:
            stalled_s = stalled_for_s(replica, now)
            if stalled_s >= settings.stall_after_s:
                what = "probes are not answered" if replica.probe_failed_since is not None else "requests run"
                actions.append(
                    SuspendReplica(replica.replica_id, f"no progress for {stalled_s:.0f} s while {what}")
                )
        elif replica.witnessed_at > replica.suspended_at:
            actions.append(ReturnReplica(replica.replica_id))
        elif now - replica.suspended_at >= _limit_s(catalog, replica, settings) and _unanswered(replica):
            if allowed <= 0:
                continue
            allowed -= 1
            silent_s = now - replica.suspended_at
            reason = f"no progress, and no probe was answered, for {silent_s:.0f} s after it left the rotation"
            actions.append(FailReplica(replica.replica_id, reason, penalty=True, evicted=True))
    return actions


def stalled_for_s(replica: Replica, now: float) -> float:
    """For how long the replica has had work without showing progress; 0 when it has none."""
    since = replica.busy_since if replica.busy_since is not None else replica.probe_failed_since
    if since is None:
        return 0.0
    return now - max(since, replica.witnessed_at)


def evictions_allowed(fleet: Fleet, now: float) -> int:
    """How many replicas that may still be serving can be given up for health now (invariant 11)."""
    serving = sum(1 for replica in fleet.replicas.values() if replica.state is ReplicaState.READY)
    cap = max(EVICTIONS_MIN, int(EVICTIONS_SHARE * serving))
    return cap - sum(1 for at in fleet.evictions if now - at < EVICTION_WINDOW_S)


def probes_wanted(fleet: Fleet, now: float, settings: FleetSettings) -> list[Replica]:
    """Ready replicas whose leaders should be asked now.

    Those with a shard on a silent node often (from half of `lost_after_s`, so that the second witness has spoken
    when the first is due), suspended ones regularly, idle ones at a low rate. The urgent come first, since only
    so many can be asked at once.
    """
    silent = {
        node.node_id
        for node in fleet.nodes.values()
        if node.state in (NodeState.READY, NodeState.UNREACHABLE)
        and now - node.last_heard > settings.lost_after_s / 2
    }
    urgent: list[Replica] = []
    troubled: list[Replica] = []
    idle: list[Replica] = []
    for replica in fleet.replicas.values():
        if replica.state is not ReplicaState.READY:
            continue
        if silent.intersection(replica.node_ids):
            every_s, wanted = max(1.0, settings.lost_after_s / 8), urgent
        elif replica.suspended is not None or replica.probe_failed_since is not None:
            every_s, wanted = settings.probe_interval_s / 4, troubled
        else:
            every_s, wanted = settings.probe_interval_s, idle
        if now - max(replica.witnessed_at, replica.probed_at) >= every_s:
            wanted.append(replica)
    return [*urgent, *troubled, *idle]


def counters_wanted(fleet: Fleet, now: float, settings: FleetSettings) -> list[Replica]:
    """Busy replicas that showed nothing lately: read their engines' counters before calling it a stall."""
    return [
        replica
        for replica in fleet.replicas.values()
        if replica.state is ReplicaState.READY
        and replica.busy_since is not None
        and now - max(replica.witnessed_at, replica.busy_since) >= settings.stall_after_s / 8
    ]


def _unanswered(replica: Replica) -> bool:
    return replica.probe_failed_since is not None


def _limit_s(catalog: Catalog, replica: Replica, settings: FleetSettings) -> float:
    model = catalog.by_name.get(replica.model)
    first_byte_s = model.first_byte_timeout if model is not None else 0.0
    return max(settings.stalled_limit_s, min(first_byte_s, 10 * settings.stalled_limit_s))
