"""What refuses a node: every filter has one constant sentence, and the node's own word beside it.

The same filters, tallied, are the answer to "why is nothing running".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmgw.fleet.model import Node, NodeState
from llmgw.fleet.room import Refuses, Room, Wanted


@dataclass(frozen=True, slots=True)
class Filter:
    """One reason to refuse a node. `lasting` is True when waiting alone will not help.

    `detail` is what the node itself says about it, as a sentence, where it says something; `detail_in` the same
    where it takes the room to say it.
    """

    reason: str
    """Said of one node, with its verb first; `choice_words.nodes_that` says it of several."""
    refuses: Refuses
    lasting: bool = False
    detail: Callable[[Node, Wanted], str | None] = lambda node, wanted: None
    detail_in: Callable[[Node, Wanted, Room], str | None] | None = None

    def said_by(self, node: Node, wanted: Wanted, room: Room) -> str | None:
        """What there is to say about a refusal."""
        return self.detail(node, wanted) if self.detail_in is None else self.detail_in(node, wanted, room)


def fabrics_for(node: Node, wanted: Wanted) -> list[str]:
    """The usable fabrics that a replica of several nodes may use there."""
    return [name for name in node.usable_fabrics if wanted.profile.fabric in (None, name)]


def _fewer_gpus(node: Node, wanted: Wanted, room: Room) -> bool:
    return len(room.usable(node)) < wanted.profile.gpus_per_node


def _no_fabric(node: Node, wanted: Wanted, room: Room) -> bool:
    return wanted.profile.nodes > 1 and not node.usable_fabrics


def _other_fabric(node: Node, wanted: Wanted, room: Room) -> bool:
    return wanted.profile.fabric is not None and node.fabric(wanted.profile.fabric) is None


def _untested(node: Node, wanted: Wanted, room: Room) -> bool:
    if wanted.profile.nodes == 1 or room.fabric_test_gate is None:
        return False
    named = wanted.profile.fabric
    return not any(named in (None, name) for name in room.fabrics(node))


def _last_tests(node: Node, wanted: Wanted, room: Room) -> str | None:
    gate = room.fabric_test_gate
    said = [gate.why_not(node.node_id, name) for name in fabrics_for(node, wanted)] if gate is not None else []
    return "; ".join(said) or None


def unknown_network(node: Node, wanted: Wanted, room: Room) -> bool:
    """The node is on one of several physical fabrics of one name, and nobody knows on which."""
    if wanted.profile.nodes == 1 or not room.facts.split:
        return False
    names = [name for name in room.fabrics(node) if wanted.profile.fabric in (None, name)]
    return not any(room.facts.network(node.node_id, name) for name in names)


def _networks_there(node: Node, wanted: Wanted) -> str:
    names = ", ".join(fabrics_for(node, wanted))
    return (
        f"several physical fabrics are called {names}, and nobody knows on which of them it is; "
        "`llmgw ctl fabrics` lists them: give each a name of its own in agent.yaml"
    )


def _engine_missing(node: Node, wanted: Wanted, room: Room) -> bool:
    return node.engine(wanted.profile.engine) is None


def _engine_broken(node: Node, wanted: Wanted, room: Room) -> bool:
    offer = node.engine(wanted.profile.engine)
    return offer is not None and offer.problem is not None


def _ports_wanted(wanted: Wanted) -> int:
    # A leader serves at one and meets its workers at another, and any node of a gang may come to lead it. What an
    # engine wants beside those its agent knows.
    return 2 if wanted.profile.nodes > 1 else 1


def _too_few_ports(node: Node, wanted: Wanted, room: Room) -> bool:
    free = node.inventory.free_ports
    return free is not None and free < _ports_wanted(wanted)


def _ports_there(node: Node, wanted: Wanted) -> str:
    free = node.inventory.free_ports
    has = f"has {free} of {_ports_wanted(wanted)} free ports" if free else "has no free port"
    where = f" in {node.inventory.port_range}" if node.inventory.port_range else ""
    return f"{has}{where}; widen supervisor.port_range in its agent.yaml"


def _engines_offered(node: Node, wanted: Wanted) -> str:
    offered = ", ".join(offer.name for offer in node.inventory.engines) or "no engine"
    return f"offers {offered}, not {wanted.profile.engine}; see engines in its agent.yaml"


def _engine_problem(node: Node, wanted: Wanted) -> str | None:
    offer = node.engine(wanted.profile.engine)
    return offer.problem if offer is not None else None


def _gpus_there(node: Node, wanted: Wanted) -> str:
    usable = sum(1 for gpu in node.gpus if gpu.usable)
    broken = "; ".join(dict.fromkeys(gpu.reason for gpu in node.gpus if not gpu.usable and gpu.reason))
    there = f"has {usable} usable GPUs of {len(node.gpus)}, wanted are {wanted.profile.gpus_per_node}"
    return f"{there}: {broken}" if broken else there


def _gpus_out_of_use(node: Node, wanted: Wanted) -> str | None:
    broken = dict.fromkeys(gpu.reason for gpu in node.gpus if not gpu.usable and gpu.reason)
    return "; ".join(broken) or None


def _fabrics_there(node: Node, wanted: Wanted) -> str:
    named = wanted.profile.fabric
    offers = [offer for offer in node.inventory.fabrics if named in (None, offer.name)]
    if not offers:
        return f"does not declare {named}" if named is not None else "declares no fabric in its agent.yaml"
    return "; ".join(f"{offer.name}: {offer.reason or 'usable'}" for offer in offers)


# In the order in which they are asked: a node is refused by the first that holds.
FILTERS: tuple[Filter, ...] = (
    Filter("has not registered since the server started", lambda n, w, r: n.state is NodeState.UNKNOWN),
    Filter("is lost", lambda n, w, r: n.state is NodeState.LOST),
    Filter("is unreachable", lambda n, w, r: n.state is NodeState.UNREACHABLE or not n.offered),
    Filter("is draining", lambda n, w, r: n.draining),
    Filter("is cordoned", lambda n, w, r: n.cordoned),
    Filter("does not offer the engine", _engine_missing, lasting=True, detail=_engines_offered),
    Filter("offers the engine, which cannot run there", _engine_broken, lasting=True, detail=_engine_problem),
    Filter("has fewer usable GPUs than gpus_per_node", _fewer_gpus, lasting=True, detail=_gpus_there),
    Filter(
        "has no usable fabric for a replica of several nodes", _no_fabric, lasting=True, detail=_fabrics_there
    ),
    Filter("is not on the fabric that the profile names", _other_fabric, lasting=True, detail=_fabrics_there),
    Filter("has not passed a test of the fabric lately enough", _untested, detail_in=_last_tests),
    Filter("is on an unknown one of several fabrics of one name", unknown_network, detail=_networks_there),
    # The node may be what the replica died of: its agent's silence only shows later.
    Filter("has not ended a shard of a failed replica yet", lambda n, w, r: n.node_id in r.ending),
    Filter("has too few free ports for an engine", _too_few_ports, detail=_ports_there),
    Filter(
        "has too few free GPUs",
        lambda n, w, r: len(r.free(n)) < w.profile.gpus_per_node,
        detail=_gpus_out_of_use,
    ),
)

_LAST_FIRST = tuple(reversed(FILTERS))


def refusal(node: Node, wanted: Wanted, room: Room) -> Filter | None:
    """The first filter that refuses the node, or None."""
    for candidate in FILTERS:
        if candidate.refuses(node, wanted, room):
            return candidate
    return None


def refuses(node: Node, wanted: Wanted, room: Room) -> bool:
    """True when any filter refuses the node: as `refusal`, and cheaper."""
    # Which filter it is matters to people only; on a full fleet the last one refuses most nodes.
    for candidate in _LAST_FIRST:  # noqa: SIM110 - a generator costs more than the filters
        if candidate.refuses(node, wanted, room):
            return True
    return False
