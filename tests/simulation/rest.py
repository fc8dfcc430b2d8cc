"""Has the fleet come to rest? Everything wanted runs, nothing else does, and everybody agrees about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgw.fleet.model import NodeState, ReplicaState
from llmgw.fleet.placement import place
from llmgw.fleet.room import Room, Wanted
from llmgw.messages.agent import LIVE_PHASES

if TYPE_CHECKING:
    from tests.simulation.world import World


def unrest(world: World) -> str | None:
    """What is still missing, in a sentence; None when the desired state is reached."""
    hub = world.server.hub
    if hub is None or hub.table is None:
        return "the server is not there"
    fleet = hub.fleet
    if fleet.settling:
        return "the server settles"
    for node_id in world.machines:
        node = fleet.nodes.get(node_id)
        if node is None or node.state is not NodeState.READY:
            return f"{node_id} is {node.state if node is not None else 'unknown'}"
        if node.disowned:
            return f"{node_id} still holds {sorted(node.disowned)}, which are nobody's"
    for replica in fleet.replicas.values():
        if replica.state is not ReplicaState.READY:
            return f"{replica.replica_id} is {replica.state}: {replica.reason}"
    for model in hub.catalog.models:
        for profile in model.profiles:
            there = [
                replica
                for replica in fleet.replicas.values()
                if (replica.model, replica.profile) == (model.name, profile.name)
            ]
            outdated = [r.replica_id for r in there if r.profile_hash != model.profile_hashes[profile.name]]
            verdict = None
            if outdated or len(there) < profile.replicas:
                verdict = place(fleet, Wanted(model.name, profile), Room.of(fleet))
            # What no node has room for may stay away, or stay as it was; but not when everything fits anywhere.
            excused = verdict is not None and verdict.seats is None and not world.plan.roomy
            if outdated and not (excused and not profile.stop_first):
                return f"{outdated} run in an outdated form"
            if len(there) != profile.replicas and not (excused and len(there) < profile.replicas):
                why = verdict.reason if verdict is not None else ""
                return f"{len(there)} of {profile.replicas} replicas of {model.name} run {why}"
    believed = {
        (shard.node_id, shard.shard_id)
        for replica in fleet.replicas.values()
        for shard in replica.shards.values()
    }
    running = {
        (machine.node_id, record.spec.shard_id)
        for machine in world.machines.values()
        for record in machine.disk.values()
        if record.phase in LIVE_PHASES
    }
    if believed != running:
        return f"believed and running differ: {sorted(believed ^ running)}"
    routed = {endpoint.id for route in hub.table.models for endpoint in route.endpoints}
    if routed != set(fleet.replicas):
        return f"routes and replicas differ: {sorted(routed ^ set(fleet.replicas))}"
    if world.router.table is None or world.router.table.version != hub.table.version:
        return "the router has an older table"
    return None
