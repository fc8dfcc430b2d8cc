"""What the roll needs to see of the nodes, read off the control plane."""

from __future__ import annotations

from llmgw.fleet.model import LOST, Node, NodeState, ReplicaState
from llmgw.messages.upgrade import UPGRADE_FEATURE
from llmgw.messages.upgrade_views import NodeUpgrade, UpgradeView
from llmgw.server.hub import Hub
from llmgw.server.upgrades.roll import Engine, Sight


def sights(hub: Hub, view: UpgradeView) -> dict[str, Sight]:
    """The nodes of an upgrade, without those that are not known any more."""
    return {
        each.node: _sight(hub, node, each, view)
        for each in view.nodes
        if (node := hub.fleet.nodes.get(each.node)) is not None
    }


def _sight(hub: Hub, node: Node, upgrade: NodeUpgrade, view: UpgradeView) -> Sight:
    told = hub.upgrades_told.get(node.node_id)
    life = hub.lives.current(node.node_id)
    why = hub.too_different.sentence(node.node_id, hub.clock.monotonic()) or node.reason
    return Sight(
        there=node.offered,
        lost=node.state is NodeState.LOST,
        state=f"{node.node_id} is {node.state}" + (f", {why}" if why else ""),
        session=node.session,
        instance=life.instance if life is not None else "",
        version=node.version,
        can_upgrade=UPGRADE_FEATURE in node.features,
        last_upgrade=node.last_upgrade,
        told=told if told is not None and told.request_id == view.id else None,
        engines=_engines(hub, node, upgrade),
    )


def _engines(hub: Hub, node: Node, upgrade: NodeUpgrade) -> dict[str, Engine]:
    found: dict[str, Engine] = {
        shard.shard_id: ("ready" if shard.phase == "ready" else "other", shard.engine_pid)
        for _, shard in hub.fleet.shards_on(node.node_id)
        if shard.phase != LOST
    }
    for shard_id in upgrade.engines.keys() - found.keys():
        found[shard_id] = ("lost" if _failed(hub, shard_id) else "stopped", None)
    return found


def _failed(hub: Hub, shard_id: str) -> bool:
    """Whether a shard that is not there any more has failed, and was not meant to end."""
    replica_id = shard_id.rpartition(".")[0]
    replica = hub.fleet.replicas.get(replica_id)
    if replica is not None and replica.state not in (ReplicaState.DRAINING, ReplicaState.STOPPING):
        return True
    return hub.failures.get(replica_id) is not None
