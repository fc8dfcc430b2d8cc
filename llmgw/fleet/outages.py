"""A port down under a running replica of several nodes (DESIGN.md section 6): noticed at once, out of the
rotation after 10 s, failed after 30 s, and as if nothing had been when the port is back before that.

Its ranks cannot speak to each other, whatever the leader answers to a probe: this has nothing to do with stalls.
"""

from __future__ import annotations

from llmgw.fleet.actions import Action, CutOff, EndOutage, FailReplica, SetOutage
from llmgw.fleet.health import evictions_allowed
from llmgw.fleet.model import Fleet, Node, Replica, ReplicaState
from llmgw.fleet.settings import FleetSettings

_JUDGED = frozenset({ReplicaState.STARTING, ReplicaState.READY})


def judge_outages(fleet: Fleet, now: float, settings: FleetSettings) -> list[Action]:
    """Replicas of several nodes whose fabric goes down on one of them, comes back, or stays away too long.

    Only nodes that speak are believed; of a silent one it is believed what it said last, and nothing follows
    from it. What may still be serving is given up within the cap of invariant 11; what starts serves nobody.
    """
    actions: list[Action] = []
    allowed: int | None = None
    for replica in fleet.replicas.values():
        if replica.nodes == 1 or replica.state not in _JUDGED:
            continue
        outage = replica.outage
        why = _down_on(fleet, replica)
        if not why:
            if outage is not None:
                actions.append(EndOutage(replica.replica_id))
            continue
        if outage is None or outage.nodes != tuple(why):
            actions.append(SetOutage(replica.replica_id, tuple(why), "; ".join(filter(None, why.values()))))
            continue
        down_s = now - outage.since
        ready = replica.state is ReplicaState.READY
        if down_s >= settings.port_down_fail_s and _said_again(fleet, replica, settings):
            if ready:
                allowed = evictions_allowed(fleet, now) if allowed is None else allowed
                if allowed <= 0:
                    continue
                allowed -= 1
            reason = f"{replica.fabric} has been down under it for {down_s:.0f} s: {outage.reason}"
            actions.append(FailReplica(replica.replica_id, reason, penalty=False, evicted=ready))
        elif ready and outage.out_since is None and down_s >= settings.port_down_suspend_s and _heard(fleet, why):
            actions.append(CutOff(replica.replica_id))
    return actions


def why_down(node: Node, replica: Replica) -> str | None:
    """Why a node's part of a replica cannot reach the others over the fabric, by what the node says; else None.

    The ports that were in use when the replica was placed must carry traffic. That the fabric is not offered any
    more for another reason, such as a mistake in agent.yaml, is no reason to stop what works over them.
    """
    name, in_use = replica.fabric, replica.ports.get(node.node_id)
    for offer in node.inventory.fabrics:
        if offer.name == name:
            break
    else:
        offer = None
    if offer is not None and offer.usable and (in_use is None or in_use == offer.adapters):
        return None  # so it is nearly always, for every replica at every decision
    lost: list[str] = []
    if in_use is not None:
        usable = offer.adapters if offer is not None and offer.usable else ()
        carrying = {f"{port.adapter}:{port.port}" for port in node.inventory.ports if port.is_up}
        lost = [port for port in in_use if port not in usable and port not in carrying]
        if not lost:
            return None
    if offer is None:
        return f"{node.node_id} does not declare {name} any more"
    if not offer.usable and offer.reason:
        return f"{node.node_id}: {offer.reason}"
    return f"{node.node_id}: {', '.join(lost) or name} is not up any more: check the cable and its other end"


def ports_in_use(fleet: Fleet, replica: Replica) -> dict[str, list[str]]:
    """Node → the ports that a replica of several nodes uses there, as far as the node offers its fabric now."""
    if replica.nodes == 1:
        return {}
    found = {}
    for node_id in replica.node_ids:
        node = fleet.nodes.get(node_id)
        offer = node.fabric(replica.fabric or "") if node is not None else None
        if offer is not None and offer.adapters:
            found[node_id] = offer.adapters
    return found


def _down_on(fleet: Fleet, replica: Replica) -> dict[str, str]:
    """Node → why the fabric is down there; as it was said last of nodes that are silent."""
    before = replica.outage.nodes if replica.outage is not None else ()
    found = {}
    for seat in replica.seats.values():
        node_id = seat.node_id
        node = fleet.nodes.get(node_id)
        if node is None:
            continue
        if _believed(node):
            why = why_down(node, replica)
            if why is not None:
                found[node_id] = why
        elif node_id in before:
            found[node_id] = why_down(node, replica) or ""
    return found


def _believed(node: Node) -> bool:
    """True when what is known of its ports was said since it was last silent."""
    return node.offered and node.inventory_at >= node.since


def _heard(fleet: Fleet, node_ids: dict[str, str]) -> bool:
    return any(_believed(fleet.nodes[node_id]) for node_id in node_ids)


def _said_again(fleet: Fleet, replica: Replica, settings: FleetSettings) -> bool:
    """True when a node that speaks has said so again when it was time to leave the rotation, or later.

    An agent whose reports hang while its polls go on says nothing new: that alone costs no replica its life.
    """
    outage = replica.outage
    return outage is not None and any(
        _believed(node) and node.inventory_at >= outage.since + settings.port_down_suspend_s
        for node in map(fleet.nodes.__getitem__, outage.nodes)
    )
