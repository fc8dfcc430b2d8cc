"""The route table that follows from the fleet and the catalog: who may be sent requests, and why nobody may."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from llmgw.config.catalog import Catalog, CatalogModel
from llmgw.fleet.model import Fleet, NodeState, Replica, ReplicaState
from llmgw.messages.routes import ModelRoute, RouteEndpoint

# What the engines serve below /v1/ for a model of each task, by the last words of the paths.
_KINDS = {
    "chat": ["chat", "completions", "messages"],
    "completion": ["completions"],
    "embedding": ["embeddings"],
    "rerank": ["rerank"],
    "score": ["score"],
    "transcription": ["transcriptions"],
}


def routes(
    fleet: Fleet,
    catalog: Catalog,
    static: dict[str, list[RouteEndpoint]],
    created_s: int = 0,
    context_lengths: Mapping[str, int] | None = None,
) -> list[ModelRoute]:
    """One route a model. `static` holds each model's static endpoints, with their keys already read, and
    `context_lengths` what engines said of theirs, by endpoint id; of several the shortest is the model's.

    A replica is in it only while its leader is ready (invariant 6), at the address its node was enrolled with
    (invariant 5). A route inherited from the previous server's table stays until its replica is adopted.
    """
    ready: dict[str, list[RouteEndpoint]] = {}
    for replica in fleet.replicas.values():
        endpoint = endpoint_of(fleet, replica)
        if endpoint is not None:
            found = catalog.find(replica.model, replica.profile)
            if found is not None:
                profile = found[1]
                endpoint = msgspec.structs.replace(
                    endpoint, concurrency=profile.concurrency, weight=profile.weight
                )
            ready.setdefault(replica.model, []).append(endpoint)
    for inherited in fleet.inherited.values():
        if _unconfirmed(fleet.replicas.get(inherited.endpoint.id)):
            ready.setdefault(inherited.model, []).append(inherited.endpoint)
    table = []
    for model in catalog.models:
        endpoints = [*static.get(model.name, []), *sorted(ready.get(model.name, []), key=lambda item: item.id)]
        table.append(
            ModelRoute(
                name=model.name,
                aliases=[name for name in model.served_names if name != model.name],
                endpoints=endpoints,
                reason="" if endpoints else _why_nothing(fleet, model),
                created_s=created_s,
                first_byte_timeout_s=model.first_byte_timeout,
                chunk_timeout_s=model.chunk_timeout,
                request_timeout_s=model.request_timeout_s,
                prefix_affinity=model.prefix_affinity,
                anthropic=model.anthropic,
                kinds=_KINDS[model.task],
                context_length=model.context_length or _shortest(endpoints, context_lengths or {}),
                queue_requests_max=model.queue.requests_max,
                queue_bytes_max=model.queue.bytes_max,
                queue_timeout_s=model.queue.timeout,
                pings=model.pings,
            )
        )
    return table


def _shortest(endpoints: list[RouteEndpoint], lengths: Mapping[str, int]) -> int | None:
    return min((lengths[endpoint.id] for endpoint in endpoints if endpoint.id in lengths), default=None)


def endpoint_of(fleet: Fleet, replica: Replica) -> RouteEndpoint | None:
    """Where requests to the replica go, or None while none must."""
    return leader_of(fleet, replica) if replica.out_of_rotation is None else None


def leader_of(fleet: Fleet, replica: Replica) -> RouteEndpoint | None:
    """Where the leader of a ready replica answers, in the rotation or not; None while it is not ready."""
    leader = replica.leader
    if replica.state is not ReplicaState.READY or leader is None or leader.phase != "ready":
        return None
    node = fleet.nodes.get(leader.node_id)
    if node is None or node.address is None or leader.http_port is None or node.state is NodeState.LOST:
        return None
    return RouteEndpoint(
        id=replica.replica_id,
        host=node.address,
        port=leader.http_port,
        node=node.node_id,
        api_key=leader.api_key,
    )


def _unconfirmed(replica: Replica | None) -> bool:
    """True while nothing contradicts an inherited route: no leader was reported, or one that is ready."""
    if replica is None:
        return True
    leader = replica.leader
    return replica.state is ReplicaState.ADOPTING and (leader is None or leader.phase == "ready")


def _why_nothing(fleet: Fleet, model: CatalogModel) -> str:
    if fleet.settling:
        return "the control plane has just started and waits for its nodes"
    if not model.profiles:
        return "its static endpoints are not usable"
    if not any(profile.replicas for profile in model.profiles):
        return "it is scaled to zero"
    replicas = [replica for replica in fleet.replicas.values() if replica.model == model.name]
    ready = [replica for replica in replicas if replica.state is ReplicaState.READY]
    if any(replica.outage is not None and replica.outage.out_since is not None for replica in ready):
        return "the fabric is down under its replicas"
    if any(replica.suspended is not None for replica in ready):
        return "its engines have work and show no progress"
    states = [replica.state for replica in replicas]
    if ReplicaState.STARTING in states:
        return "its replicas are starting"
    if not fleet.nodes:
        return "no node has registered yet"
    return "none of its replicas runs; `llmgw ctl explain` says why"
