"""Is a node there? Two witnesses are asked: the agent's messages, and whether the node's shards work."""

from __future__ import annotations

from llmgw.fleet.actions import Action, EndSettling, NodeLost, NodeUnreachable
from llmgw.fleet.model import Fleet, Node, NodeState, Replica, ReplicaState
from llmgw.fleet.settings import FleetSettings


def judge_nodes(fleet: Fleet, now: float, settings: FleetSettings) -> list[Action]:
    """Who became unreachable or lost. A node that was never heard since the start is judged after settling."""
    actions: list[Action] = []
    for node in fleet.nodes.values():
        if node.state is NodeState.LOST:
            continue
        if node.state is NodeState.UNKNOWN:
            if not fleet.settling and now - node.since >= settings.unreachable_limit_s:
                actions.append(NodeLost(node.node_id, "it has not registered since the server started"))
            continue
        silent_s = now - node.last_heard
        if silent_s < settings.lost_after_s:
            continue
        shards = fleet.shards_on(node.node_id)
        if not shards:
            works, why = True, "it holds no shards"
        else:
            last = max((witnessed_at(replica) for replica, _ in shards), default=float("-inf"))
            works = now - last < settings.lost_after_s
            why = "its shards work" if works else "its shards do not answer"
        if works and silent_s < settings.unreachable_limit_s:
            if node.state is not NodeState.UNREACHABLE:
                actions.append(NodeUnreachable(node.node_id, f"no message for {silent_s:.0f} s, but {why}"))
        else:
            actions.append(NodeLost(node.node_id, f"no message for {silent_s:.0f} s, and {why}"))
    return actions


def witnessed_at(replica: Replica) -> float:
    """When the replica was last seen to work; a worker's witness is its leader's answer."""
    return replica.witnessed_at if replica.state in (ReplicaState.READY, ReplicaState.DRAINING) else float("-inf")


def speaks(fleet: Fleet, node: Node, now: float, settings: FleetSettings) -> bool:
    """True while the machine that registered last as this node is there: its agent is heard, or its shards work.

    Another machine that claims the node's name meanwhile is a clone: were it believed, everything that works
    behind a cut agent would be let go.
    """
    if node.session is None:
        return False
    last = max((witnessed_at(replica) for replica, _ in fleet.shards_on(node.node_id)), default=float("-inf"))
    return now - max(node.last_heard, last) < settings.lost_after_s


def end_settling(fleet: Fleet, now: float) -> list[Action]:
    """Settling ends when every known node has registered, or its time is over.

    An empty store knows no nodes, so it waits for the whole time.
    """
    if fleet.settling_until is None:
        return []
    if now >= fleet.settling_until:
        waiting = [node.node_id for node in fleet.nodes.values() if node.state is NodeState.UNKNOWN]
        late = f"; not registered: {', '.join(sorted(waiting))}" if waiting else ""
        return [EndSettling(f"its time is over{late}")]
    known = [node for node in fleet.nodes.values() if node.known]
    if known and all(node.state is not NodeState.UNKNOWN for node in known):
        return [EndSettling("every known node has registered")]
    return []


def probes_wanted(fleet: Fleet, now: float, settings: FleetSettings) -> list[Replica]:
    """Ready replicas with a shard on a silent node, or behind an unconfirmed route: ask their leaders now.

    Asking begins at half of `lost_after_s`, so that the second witness has spoken when the first is due.
    """
    wanted = []
    silent = {
        node.node_id
        for node in fleet.nodes.values()
        if node.state in (NodeState.READY, NodeState.UNREACHABLE)
        and _silent_s(node, now) > settings.lost_after_s / 2
    }
    every_s = max(1.0, settings.lost_after_s / 8)
    for replica in fleet.replicas.values():
        if replica.state is not ReplicaState.READY or not silent.intersection(replica.node_ids):
            continue
        if now - max(replica.witnessed_at, replica.probed_at) >= every_s:
            wanted.append(replica)
    return wanted


def _silent_s(node: Node, now: float) -> float:
    return now - node.last_heard
