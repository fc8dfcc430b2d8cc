"""What agents, routers and probes say, written into the fleet. Nothing is decided here.

Every function returns the events that history keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmgw.fleet.events import REASON_CHARS_MAX, Event, node_event, replica_event
from llmgw.fleet.model import (
    GONE,
    LOST,
    Fleet,
    InheritedRoute,
    Node,
    NodeState,
    Replica,
    ReplicaState,
    RouterState,
    Seat,
    Shard,
    shard_id_of,
)
from llmgw.messages.agent import LIVE_PHASES, HeldShard, Inventory, Register
from llmgw.messages.routes import RouteTable


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What a connection proved: the address the node was enrolled with, and when its certificate ends."""

    address: str
    certificate_expires_at: float | None = None


def register(fleet: Fleet, message: Register, enrolment: Enrolment, session: str, now: float) -> list[Event]:
    """A node says everything it has and holds; what it does not name is let go (invariant 3).

    The caller has checked identity and order of lives (invariants 5 and 10).
    """
    node = fleet.nodes.get(message.node_id)
    events: list[Event] = []
    if node is None:
        node = fleet.nodes[message.node_id] = Node(message.node_id, since=now)
        events.append(node_event(node.node_id, "joined", f"llmgw {message.version}"))
    if node.state is not NodeState.READY:
        before = node.state
        node.state, node.since, node.reason = NodeState.READY, now, None
        events.append(node_event(node.node_id, "ready", f"registered; was {before}"))
    node.session = session
    node.last_heard = node.registered_at = now
    node.address = enrolment.address
    node.certificate_expires_at = enrolment.certificate_expires_at
    node.version = message.version
    node.features = frozenset(message.features)
    node.last_upgrade = message.last_upgrade
    events += take_inventory(node, message.inventory, now)
    events += _take_held(fleet, node, message.held, now)
    drop_inherited_of(fleet, node.node_id)
    return events


def take_inventory(node: Node, inventory: Inventory, now: float) -> list[Event]:
    """Replace what a node has; a GPU that goes or can no longer be used is an event.

    Changes of fabrics are kept by the store, which knows how they were before this server started.
    """
    before, node.inventory, node.inventory_at = node.inventory, inventory, now
    events = []
    gpus_before = {gpu.uuid: gpu for gpu in before.gpus}
    for gpu in inventory.gpus:
        was = gpus_before.pop(gpu.uuid, None)
        if not gpu.usable and (was is None or was.usable):
            events.append(node_event(node.node_id, "gpu unusable", f"GPU {gpu.index}: {gpu.reason}"))
    events += [
        node_event(node.node_id, "gpu gone", f"GPU {gpu.index} ({uuid})") for uuid, gpu in gpus_before.items()
    ]
    return events


def heard(fleet: Fleet, node_id: str, now: float) -> list[Event]:
    """Any message of the node's current session counts as a heartbeat."""
    node = fleet.nodes[node_id]
    node.last_heard = now
    if node.state is NodeState.UNREACHABLE and node.session is not None:
        node.state, node.since, node.reason = NodeState.READY, now, None
        return [node_event(node_id, "ready", "heard again")]
    return []


def report(
    fleet: Fleet, node_id: str, inventory: Inventory | None, shards: list[HeldShard], now: float
) -> list[Event]:
    """A heartbeat or transitions from the node's current session."""
    node = fleet.nodes[node_id]
    events = heard(fleet, node_id, now)
    if inventory is not None:
        events += take_inventory(node, inventory, now)
    for held in shards:
        events += _take_status(fleet, node, held, now, registering=False)
    return events


def is_news(fleet: Fleet, node_id: str, inventory: Inventory | None, shards: list[HeldShard]) -> bool:
    """True when a report, asked before it is taken, says something that should be decided on at once.

    Most heartbeats repeat the last one but for temperatures, counters and progress.
    """
    node = fleet.nodes[node_id]
    if node.state is NodeState.UNREACHABLE:
        return True
    if inventory is not None and _offer(inventory) != _offer(node.inventory):
        return True
    for held in shards:
        found = fleet.shard(held.spec.shard_id)
        if found is None or found[1].node_id != node_id:
            if held.phase in LIVE_PHASES or held.spec.shard_id in node.disowned:
                return True
            continue  # the end of what nothing here describes: for history only
        shard = found[1]
        said = (held.phase, held.http_port, held.rendezvous_port, held.api_key)
        if said != (shard.phase, shard.http_port, shard.rendezvous_port, shard.api_key):
            return True
    return False


def _offer(inventory: Inventory) -> tuple[object, ...]:
    """The part of an inventory that placement reads."""
    free_ports = None if inventory.free_ports is None else min(inventory.free_ports, 2)
    return [(gpu.uuid, gpu.usable) for gpu in inventory.gpus], inventory.fabrics, inventory.engines, free_ports


def witness(fleet: Fleet, replica_id: str, now: float) -> None:
    """A router, a probe or the engine's counters showed that the replica's leader works."""
    replica = fleet.replicas.get(replica_id)
    if replica is not None:
        replica.witnessed_at = now
        replica.probe_failed_since = None
    inherited = fleet.inherited.get(replica_id)
    if inherited is not None:
        inherited.alive_at = now


def unanswered(fleet: Fleet, replica_id: str, asked_at: float) -> None:
    """A probe of the replica's leader, sent at `asked_at`, was not answered."""
    replica = fleet.replicas.get(replica_id)
    if replica is not None and replica.probe_failed_since is None and replica.witnessed_at < asked_at:
        replica.probe_failed_since = asked_at


def in_flight(fleet: Fleet, router_id: str, counts: dict[str, int], now: float) -> None:
    """A router said how many requests it has on each endpoint."""
    fleet.routers.setdefault(router_id, RouterState()).in_flight = counts
    for replica in fleet.replicas.values():
        busy = any(router.in_flight.get(replica.replica_id, 0) for router in fleet.routers.values())
        if not busy:
            replica.busy_since = None
        elif replica.busy_since is None:
            replica.busy_since = now


def forgive_pause(fleet: Fleet, pause_s: float, now: float) -> None:
    """The control plane stood still until `now`; nobody's deadline may suffer for it, so each moves along."""

    def moved(at: float) -> float:
        # What was said while it woke up was said now, and not in the future.
        return min(now, at + pause_s)

    for node in fleet.nodes.values():
        node.last_heard = moved(node.last_heard)
        node.since = moved(node.since)
        node.inventory_at = moved(node.inventory_at)
        node.lost_not_before += pause_s
    for replica in fleet.replicas.values():
        replica.since = moved(replica.since)
        replica.witnessed_at = moved(replica.witnessed_at)
        replica.suspended_at = moved(replica.suspended_at)
        if replica.outage is not None:
            out_since = replica.outage.out_since
            replica.outage = replace(
                replica.outage,
                since=moved(replica.outage.since),
                out_since=None if out_since is None else moved(out_since),
            )
        if replica.busy_since is not None:
            replica.busy_since = moved(replica.busy_since)
        if replica.probe_failed_since is not None:
            replica.probe_failed_since = moved(replica.probe_failed_since)
        for shard in replica.shards.values():
            shard.since = moved(shard.since)
    for inherited in fleet.inherited.values():
        inherited.alive_at = moved(inherited.alive_at)
    # Else those that were silent before the doubt would have been heard after it, and be back.
    fleet.doubted_at = moved(fleet.doubted_at)
    if fleet.settling_until is not None:
        fleet.settling_until += pause_s


def _take_held(fleet: Fleet, node: Node, held: list[HeldShard], now: float) -> list[Event]:
    events: list[Event] = []
    named = {item.spec.shard_id for item in held}
    for item in held:
        events += _take_status(fleet, node, item, now, registering=True)
    for replica, shard in fleet.shards_on(node.node_id):
        if shard.shard_id not in named:
            shard.phase, shard.since = GONE, now
            shard.reason = shard.reason or f"{node.node_id} registered without it"
            events.append(replica_event(replica, "shard let go", shard.reason))
    for shard_id in list(node.disowned):
        if shard_id not in named:
            node.forget_disowned(shard_id)
    return events


def _take_status(fleet: Fleet, node: Node, held: HeldShard, now: float, *, registering: bool) -> list[Event]:
    live = held.phase in LIVE_PHASES
    end_is_news = not live and node.end_is_news(held.spec.shard_id)
    if not live:
        node.forget_disowned(held.spec.shard_id)
    found = fleet.shard(held.spec.shard_id)
    if found is not None and found[1].node_id == node.node_id:
        shard = found[1]
        if live and shard.over and held.version >= shard.version:
            # It was let go and is there all the same: its replica has failed by that, its GPUs are in use.
            node.disown(held.spec)
            return []
        events = _update(found[0], shard, held, now)
        if events and held.phase == "failed":
            _also_failed(fleet, found[0], shard)
        return events
    if not live:
        return _end_of_unknown(node, held) if end_is_news else []
    if not registering:
        # Only a registration introduces shards: this is an older life's message, or nobody's shard.
        node.disown(held.spec)
        return []
    return _meet(fleet, node, held, now)


def _update(replica: Replica, shard: Shard, held: HeldShard, now: float) -> list[Event]:
    if held.version < shard.version or (shard.over and held.phase in LIVE_PHASES):
        return []  # a late or repeated message of an older life
    changed = held.phase != shard.phase
    shard.version = held.version
    shard.http_port = held.http_port
    shard.rendezvous_port = held.rendezvous_port
    shard.api_key = held.api_key
    shard.engine_pid = held.engine_pid or shard.engine_pid
    shard.progress = held.progress
    shard.figures = held.figures
    shard.figures_at = now - held.figures.age_s if held.figures is not None else now
    shard.figures_problem = held.figures_problem
    if held.output_tail:
        shard.output_tail = held.output_tail
    shard.reason = held.reason
    shard.exit_code = held.exit_code
    if not changed:
        return []
    was, shard.phase, shard.since = shard.phase, held.phase, now
    if was == LOST and replica.given_up and held.phase in LIVE_PHASES:
        replica.returned = True
    if held.phase in ("failed", "stopped"):
        return [replica_event(replica, f"shard {held.phase}", _end_of(shard))]
    return []


def _end_of_unknown(node: Node, held: HeldShard) -> list[Event]:
    """A shard has ended that nothing here describes: it was disowned, or ended before this server knew of it.

    It changes nothing, but history keeps it: once, though its agent tells it until it hears that it is stored.
    """
    spec = held.spec
    if spec.shard_id != shard_id_of(spec.replica_id, spec.rank):
        return []  # an agent's answer to a stop of what it does not hold
    shard = Shard(spec, node.node_id, held.phase, reason=held.reason, output_tail=held.output_tail)
    return [
        Event(
            "replica",
            spec.replica_id,
            f"shard {held.phase}",
            _end_of(shard),
            spec.model,
            (node.node_id,),
            once=True,
        )
    ]


def _end_of(shard: Shard) -> str:
    return f"rank {shard.spec.rank} on {shard.node_id}: {shard.ending}"


def _also_failed(fleet: Fleet, replica: Replica, shard: Shard) -> None:
    """The rank of a gang that is heard of first is seldom the culprit: why another failed is said beside it."""
    backoff = fleet.backoff.get((replica.model, replica.profile))
    if replica.state is not ReplicaState.FAILED or backoff is None or backoff.replica_id != replica.replica_id:
        return
    also = f"; rank {shard.spec.rank} on {shard.node_id}: {shard.ending}"
    if len(backoff.reason) + len(also) <= REASON_CHARS_MAX:
        backoff.reason += also


def _meet(fleet: Fleet, node: Node, held: HeldShard, now: float) -> list[Event]:
    """A live shard that nothing here describes: part of a replica to adopt, or nobody's."""
    spec = held.spec
    if spec.shard_id != shard_id_of(spec.replica_id, spec.rank):
        # No server gave it that name. A replica would ask for its end by it for ever, and never find it ended.
        node.disown(spec)
        return []
    replica = fleet.replicas.get(spec.replica_id)
    events: list[Event] = []
    if replica is None:
        replica = fleet.replicas[spec.replica_id] = Replica(
            replica_id=spec.replica_id,
            model=spec.model,
            profile=spec.profile,
            profile_hash=spec.profile_hash,
            nodes=spec.nodes,
            engine=spec.engine,
            state=ReplicaState.ADOPTING,
            since=now,
            created_at=now,
            fabric=spec.fabric,
        )
        events.append(
            replica_event(replica, "reported", f"{node.node_id} holds rank {spec.rank} of {spec.nodes}")
        )
    fits = (
        replica.state is ReplicaState.ADOPTING
        and 0 <= spec.rank < replica.nodes
        and spec.rank not in replica.shards
        and (spec.model, spec.profile, spec.profile_hash, spec.nodes)
        == (replica.model, replica.profile, replica.profile_hash, replica.nodes)
        and node.node_id not in replica.node_ids
    )
    if not fits:
        node.disown(spec)
        return events
    shard = Shard(spec=spec, node_id=node.node_id, since=now - held.phase_age_s)
    shard.phase = ""
    replica.seats[spec.rank] = Seat(node.node_id, tuple(spec.gpus))
    replica.shards[spec.rank] = shard
    return events + _update(replica, shard, held, now)


def inherit_routes(fleet: Fleet, table: RouteTable, now: float) -> None:
    """Take over the table of routers that outlived the previous server; nodes may have registered already."""
    for model in table.models:
        for endpoint in model.endpoints:
            known = fleet.replicas.get(endpoint.id)
            # Part of a gang may have been reported already, and not yet its leader.
            if endpoint.node is not None and (known is None or known.state is ReplicaState.ADOPTING):
                fleet.inherited.setdefault(endpoint.id, InheritedRoute(model.name, endpoint, alive_at=now))
    for node in fleet.nodes.values():
        # Also one that is lost by now: it has spoken since this server started.
        if node.last_heard > float("-inf"):
            drop_inherited_of(fleet, node.node_id)


def drop_inherited_of(fleet: Fleet, node_id: str) -> None:
    """Withdraw the inherited routes to a node that has registered, as far as it does not confirm them."""
    # The node has spoken: a route that its registration does not confirm is over. A confirmed one stays
    # until its replica is adopted, which may wait for other nodes.
    for endpoint_id, inherited in list(fleet.inherited.items()):
        if inherited.endpoint.node != node_id:
            continue
        replica = fleet.replicas.get(endpoint_id)
        leader = replica.leader if replica is not None else None
        if leader is None or leader.over or leader.node_id != node_id:
            del fleet.inherited[endpoint_id]
