"""The hub's beliefs in the admin API's shapes. Reads only."""

from __future__ import annotations

from collections.abc import Mapping

from llmgw.config.addresses import join_host_port
from llmgw.config.catalog import CatalogModel, Profile
from llmgw.fleet.choice_words import how_they_sit
from llmgw.fleet.model import Fleet, Node, Replica, ReplicaState, Shard
from llmgw.fleet.moves import Move, moves, retry_of
from llmgw.fleet.placement import place
from llmgw.fleet.reconcile import backoff_of
from llmgw.fleet.room import Room, Wanted
from llmgw.fleet.routes import endpoint_of
from llmgw.messages.admin import (
    ExplainProfile,
    ExplainView,
    FilterTally,
    ModelView,
    NodeView,
    ProfileView,
    ReplicaView,
    ShardView,
)
from llmgw.server.figures import fresh_figure
from llmgw.server.hub import Hub


def moves_of(hub: Hub) -> dict[str, Move]:
    """Replicas that must be replaced though they are healthy, and what each waits for."""
    return moves(hub.fleet, hub.catalog, hub.clock.monotonic())


def replica_views(hub: Hub) -> list[ReplicaView]:
    """Every replica, by model and then age."""
    replicas = sorted(hub.fleet.replicas.values(), key=lambda r: (r.model, r.created_at, r.replica_id))
    moving = moves_of(hub)
    return [_replica(hub, replica, moving.get(replica.replica_id)) for replica in replicas]


def node_views(hub: Hub) -> list[NodeView]:
    """Every node, by id."""
    used = hub.fleet.gpus_in_use()
    there = hub.fleet.shards_by_node()
    moving = moves_of(hub)
    return [
        _node(hub, node, used.get(node.node_id, set()), there.get(node.node_id, []), moving)
        for node in _sorted_nodes(hub.fleet)
    ]


def model_views(hub: Hub) -> list[ModelView]:
    """Every model of the catalog, by name."""
    room, moving = Room.of(hub.fleet), moves_of(hub)
    return [
        ModelView(
            name=model.name,
            aliases=model.aliases,
            source=model.source,
            task=model.task,
            static_endpoints=[endpoint.url for endpoint in model.endpoints],
            profiles=[_profile(hub, model, profile, room, moving) for profile in model.profiles],
            endpoints_ready=sum(
                len(route.endpoints)
                for route in (hub.table.models if hub.table else ())
                if route.name == model.name
            ),
            queued=hub.queued_of(model.name),
        )
        for model in sorted(hub.catalog.models, key=lambda model: model.name)
    ]


def explain_view(hub: Hub, model: CatalogModel) -> ExplainView:
    """Why the model's replicas run where they do, or why they do not: placement's own filters, tallied."""
    room, moving = Room.of(hub.fleet), moves_of(hub)
    return ExplainView(
        model=model.name, profiles=[_explain(hub, model, profile, room, moving) for profile in model.profiles]
    )


def drain_progress(hub: Hub, node: Node, moving: Mapping[str, Move]) -> tuple[list[str], list[str]]:
    """While a node drains: what cannot be moved and why, and what else is still there; a sentence each."""
    left: list[str] = []
    waits: list[str] = []
    if node.draining:
        for replica, _ in hub.fleet.shards_on(node.node_id):
            move = moving.get(replica.replica_id)
            if replica.state is ReplicaState.DRAINING:
                waits.append(f"{replica.replica_id}: its requests run out")
            elif not replica.live:
                silent = "" if node.offered else f", which waits until {node.node_id} is heard again"
                waits.append(f"{replica.replica_id}: it is being stopped{silent}")
            elif move is not None:
                (left if move.stuck else waits).append(f"{replica.replica_id}: {move.waits}")
            else:
                waits.append(f"{replica.replica_id}: it waits until all of it is known")
    return left, waits


def _node(
    hub: Hub, node: Node, used: set[str], shards: list[tuple[Replica, Shard]], moving: Mapping[str, Move]
) -> NodeView:
    now = hub.clock.monotonic()
    left, waits = drain_progress(hub, node, moving)
    heard, registered = now - node.last_heard, now - node.registered_at
    return NodeView(
        node_id=node.node_id,
        state=node.state.value,
        reason=node.reason,
        address=node.address,
        version=node.version or None,
        cordoned=node.cordoned,
        draining=node.draining,
        drain_left=left,
        drain_waits=waits,
        last_heard_s=round(max(0.0, heard), 1) if heard < 1e9 else None,
        registered_s=round(max(0.0, registered), 1) if registered < 1e9 else None,
        certificate_expires_at=node.certificate_expires_at,
        gpus=node.gpus,
        gpus_in_use=sorted(gpu.index for gpu in node.gpus if gpu.uuid in used),
        fabrics=node.inventory.fabrics,
        ports=node.inventory.ports,
        port_fabrics={
            f"{port.adapter}:{port.port}": name
            for port in node.inventory.ports
            if (name := hub.ports.name_of(node.node_id, port.adapter, port.port)) is not None
        },
        engines=[
            f"{offer.name} ({offer.problem})" if offer.problem else offer.name for offer in node.inventory.engines
        ],
        replicas=sorted({replica.replica_id for replica, _ in shards}),
        findings=hub.node_findings(node, shards),
    )


def _replica(hub: Hub, replica: Replica, move: Move | None) -> ReplicaView:
    fleet = hub.fleet
    leader = replica.leader
    node = fleet.nodes.get(leader.node_id) if leader is not None else None
    endpoint = (
        join_host_port(node.address, leader.http_port)
        if leader is not None and leader.http_port and node is not None and node.address
        else None
    )
    found = hub.catalog.find(replica.model, replica.profile)
    return ReplicaView(
        replica_id=replica.replica_id,
        model=replica.model,
        profile=replica.profile,
        engine=replica.engine,
        state=replica.state.value,
        since=_wall(hub, replica.since),
        created_at=_wall(hub, replica.created_at),
        fabric=replica.fabric,
        nodes=replica.node_ids,
        endpoint=endpoint,
        routed=endpoint_of(fleet, replica) is not None,
        outdated=found is None or found[0].profile_hashes[replica.profile] != replica.profile_hash,
        replaces=replica.replaces,
        reason=_why(replica, move),
        figures=fresh_figure(leader, hub.clock.monotonic()) if leader is not None else None,
        in_flight=sum(router.in_flight.get(replica.replica_id, 0) for router in fleet.routers.values()),
        shards=[_shard(fleet, shard) for _, shard in sorted(replica.shards.items())],
    )


def _why(replica: Replica, move: Move | None) -> str | None:
    if move is not None:
        return move.sentence
    if replica.live and replica.out_of_rotation is not None:
        return f"out of the rotation: {replica.out_of_rotation}"
    if replica.live and replica.outage is not None:
        return f"{replica.fabric} is down under it: {replica.outage.reason}"
    # That it is ready says it all; a reason is for what is not as it should be.
    return None if replica.state is ReplicaState.READY else replica.reason


def _shard(fleet: Fleet, shard: Shard) -> ShardView:
    node = fleet.nodes.get(shard.node_id)
    index = {gpu.uuid: gpu.index for gpu in node.gpus} if node is not None else {}
    return ShardView(
        shard_id=shard.shard_id,
        rank=shard.spec.rank,
        node=shard.node_id,
        gpus=[index[uuid] for uuid in shard.spec.gpus if uuid in index],
        phase=shard.phase,
        reason=shard.reason,
        exit_code=shard.exit_code,
        engine_pid=shard.engine_pid,
        output_tail=shard.output_tail,
        progress=shard.progress,
    )


def _profile(
    hub: Hub, model: CatalogModel, profile: Profile, room: Room, moving: Mapping[str, Move]
) -> ProfileView:
    replicas = [
        replica
        for replica in hub.fleet.replicas.values()
        if (replica.model, replica.profile) == (model.name, profile.name)
    ]
    states = [replica.state for replica in replicas]
    ready = states.count(ReplicaState.READY)
    as_wanted = ready >= profile.replicas and not any(replica.replica_id in moving for replica in replicas)
    return ProfileView(
        name=profile.name,
        engine=profile.engine,
        nodes=profile.nodes,
        gpus_per_node=profile.gpus_per_node,
        weight=profile.weight,
        wanted=profile.replicas,
        ready=ready,
        starting=states.count(ReplicaState.STARTING),
        failed=states.count(ReplicaState.FAILED),
        reason=None if as_wanted else _explain(hub, model, profile, room, moving).summary,
    )


def _explain(
    hub: Hub, model: CatalogModel, profile: Profile, room: Room, moving: Mapping[str, Move]
) -> ExplainProfile:
    fleet = hub.fleet
    replicas = [r for r in fleet.replicas.values() if (r.model, r.profile) == (model.name, profile.name)]
    ready = sum(1 for replica in replicas if replica.state is ReplicaState.READY)
    live = sum(1 for replica in replicas if replica.live)
    verdict = place(fleet, Wanted(model.name, profile), room)
    backoff = backoff_of(fleet, model, profile)
    wait_s = backoff.not_before - hub.clock.monotonic() if backoff is not None else 0.0
    if ready >= profile.replicas:
        summary = f"{ready} of {profile.replicas} wanted are ready" + _to_replace(replicas, moving)
    elif fleet.settling:
        summary = "the server has just started and waits for its nodes before it places anything"
    elif live >= profile.replicas:
        starting = "1 is" if live - ready == 1 else f"{live - ready} are"
        summary = f"{ready} of {profile.replicas} wanted are ready, {starting} starting"
    elif wait_s > 0 and backoff is not None:
        summary = retry_of(backoff, hub.clock.monotonic())
    elif verdict.seats is None:
        summary = f"cannot be placed: {verdict.reason}"
    else:
        summary = f"{ready} of {profile.replicas} wanted are ready; the next is about to be placed"
    return ExplainProfile(
        name=profile.name,
        weight=profile.weight,
        wanted=profile.replicas,
        ready=ready,
        summary=summary,
        placed={replica.replica_id: replica.node_ids for replica in replicas if replica.live},
        sits={
            replica.replica_id: sits
            for replica in replicas
            if replica.live
            and replica.nodes > 1
            and (sits := how_they_sit(replica.node_ids, replica.fabric or "", fleet.fabric_facts))
        },
        decided=verdict.decided,
        last=verdict.last,
        feasible=verdict.feasible,
        refused=[
            FilterTally(
                reason=reason,
                nodes=nodes,
                details={node: verdict.details[node] for node in nodes if node in verdict.details},
            )
            for reason, nodes in verdict.refused.items()
        ],
        retry_in_s=round(wait_s, 1) if wait_s > 0 else None,
        last_failure=backoff.reason if backoff is not None else None,
    )


def _to_replace(replicas: list[Replica], moving: Mapping[str, Move]) -> str:
    """What is said of ready replicas that must be replaced: the one that cannot be comes first."""
    found = sorted(
        (move for replica in replicas if (move := moving.get(replica.replica_id))),
        key=lambda move: not move.stuck,
    )
    if not found:
        return ""
    return f"; to be replaced {_are(len(found))}: {found[0].replica_id}: {found[0].sentence}"


def _are(count: int) -> str:
    return f"is {count}" if count == 1 else f"are {count}"


def _sorted_nodes(fleet: Fleet) -> list[Node]:
    return sorted(fleet.nodes.values(), key=lambda node: node.node_id)


def _wall(hub: Hub, monotonic: float) -> float:
    return round(hub.clock.wall() - (hub.clock.monotonic() - monotonic), 3)
