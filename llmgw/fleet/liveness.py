"""Is a node there? Two witnesses are asked: the agent's messages, and whether the node's shards work."""

from __future__ import annotations

from llmgw.fleet.actions import (
    Action,
    DoubtSilence,
    EndDoubt,
    EndSettling,
    NodeLost,
    NodeUnreachable,
)
from llmgw.fleet.model import Fleet, Node, NodeState, Replica, ReplicaState
from llmgw.fleet.sets import Sets
from llmgw.fleet.settings import FleetSettings


def judge_nodes(sets: Sets, now: float, settings: FleetSettings) -> list[Action]:
    """Who became unreachable or lost. A node that was never heard since the start is judged after settling."""
    fleet = sets.fleet
    doubt = _doubt(fleet, now, settings)
    if doubt:
        return doubt
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
        shards = sets.shards_on(node.node_id)
        if not shards:
            works, why = True, "it holds no shards"
        else:
            last = max((witnessed_at(replica) for replica, _ in shards), default=float("-inf"))
            works = now - last < settings.lost_after_s
            why = "its shards work" if works else "its shards do not answer"
            if not works and any(_worked_to_the_end(replica, node, settings) for replica, _ in shards):
                works, why = True, "its shards worked until another node was given up"
        doubted = bool(fleet.doubted) or now < node.lost_not_before
        if doubted and not works:
            why = "most nodes fell silent with it"
        if doubted or (works and silent_s < settings.unreachable_limit_s):
            if node.state is not NodeState.UNREACHABLE:
                actions.append(NodeUnreachable(node.node_id, f"no message for {silent_s:.0f} s, but {why}"))
        else:
            actions.append(NodeLost(node.node_id, f"no message for {silent_s:.0f} s, and {why}"))
    return actions


def _doubt(fleet: Fleet, now: float, settings: FleetSettings) -> list[Action]:
    """When more than half of the nodes (and more than one) fall silent in one window, this side is at fault."""
    speaking = {
        node.node_id: now - node.last_heard
        for node in fleet.nodes.values()
        if node.state in (NodeState.READY, NodeState.UNREACHABLE)
    }
    if fleet.doubted:
        doubted = fleet.doubted & fleet.nodes.keys()
        back = {node_id for node_id in doubted if fleet.nodes[node_id].last_heard > fleet.doubted_at}
        if 3 * len(back) >= len(doubted):
            return [EndDoubt(f"{len(back)} of {len(doubted)} nodes are back")]
        return []
    window = [
        node_id
        for node_id, silent_s in speaking.items()
        if suspiciously_silent(fleet.nodes[node_id], now, settings) and silent_s < 2 * settings.lost_after_s
    ]
    if len(window) > 1 and 2 * len(window) > len(speaking):
        return [
            DoubtSilence(
                tuple(sorted(window)),
                f"{len(window)} of {len(speaking)} nodes fell silent together: nothing is declared lost until a "
                "third of them is back",
            )
        ]
    return []


def suspiciously_silent(node: Node, now: float, settings: FleetSettings) -> bool:
    """Silent from well before it would be declared lost, so that the last of a window is counted in time."""
    return now - node.last_heard >= 0.6 * settings.lost_after_s


def witnessed_at(replica: Replica) -> float:
    """When the replica was last seen to work; a worker's witness is its leader's answer."""
    return replica.witnessed_at if replica.state in (ReplicaState.READY, ReplicaState.DRAINING) else float("-inf")


def _worked_to_the_end(replica: Replica, node: Node, settings: FleetSettings) -> bool:
    """True when the replica was seen to work until it was given up with another node, while this one was silent.

    Nobody asks it any more: that it does not answer says nothing about this node.
    """
    return (
        replica.given_up
        and node.last_heard < replica.since
        and replica.since - replica.witnessed_at < settings.lost_after_s
    )


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
