"""What a wished test consists of, or in one sentence why there is none. Reads the fleet and changes nothing."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from llmgw.fabric.pairwise import rounds
from llmgw.fleet.model import Fleet, Node, NodeState
from llmgw.messages.agent import FabricOffer, Port
from llmgw.messages.fabric_test import BANDWIDTH_PORTS_MAX
from llmgw.messages.fabric_test_views import StartFabricTest
from llmgw.server.admin.backend import AdminError
from llmgw.server.hub_error import HubError

MEASUREMENTS_MAX = 20_000
NAMES_SHOWN_MAX = 20


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Pairs of nodes in rounds: the pairs of one round are tested at the same time."""

    fabric: str
    rounds: list[list[tuple[str, str]]]
    nodes: list[str]
    planned: int
    """Measurements: each rail of each pair, in both directions."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Checks:
    """What keeps a node from being tested, beside what the fleet itself knows."""

    fleet: Fleet
    must_test: Callable[[str], None]
    """Raises HubError for a node whose agent is too old."""
    testing: Mapping[str, str]
    """Node → the test that it takes part in now."""
    busy_ok: bool

    def must_exist(self, node_id: str) -> Node:
        """The node, whatever it does now. Raises AdminError."""
        node = self.fleet.nodes.get(node_id)
        if node is None:
            raise _unknown_node(node_id, self.fleet.nodes)
        return node

    def must_be_free(self, node_id: str) -> Node:
        """The node, there and willing. Raises AdminError."""
        node = self.must_be_able(node_id)
        if node_id in self.testing:
            raise AdminError(
                409, "in-test", f"{node_id} takes part in the test {self.testing[node_id]} now; wait for its end"
            )
        shards = self.fleet.shards_on(node_id)
        if shards and not self.busy_ok:
            names = sorted({replica.replica_id for replica, _ in shards})
            raise AdminError(
                409,
                "serving",
                f"{node_id} runs {_listed(names)}, and a test would slow that down; drain it first, or test it "
                "all the same with --busy-ok",
            )
        return node

    def must_be_able(self, node_id: str) -> Node:
        """The node, ready and new enough. Raises AdminError."""
        node = self.must_exist(node_id)
        if node.state is not NodeState.READY or node.session is None:
            since = f": {node.reason}" if node.reason else ""
            raise AdminError(
                503, "node_silent", f"{node_id} is {node.state.value} now{since}; test it when it is ready"
            )
        try:
            self.must_test(node_id)
        except HubError as error:
            raise AdminError(error.status, error.code, error.message) from None
        return node

    def must_declare(self, node: Node, fabric: str) -> FabricOffer:
        """The node's fabric of that name, usable or not. Raises AdminError."""
        offer = next((offer for offer in node.inventory.fabrics if offer.name == fabric), None)
        if offer is None:
            raise AdminError(409, "other-fabric", f"{node.node_id} is not on {fabric}; {_fabrics_of(node)}")
        return offer

    def must_offer(self, node: Node, fabric: str) -> FabricOffer:
        """The node's usable fabric of that name. Raises AdminError."""
        offer = self.must_declare(node, fabric)
        if not offer.usable:
            reason = offer.reason or "it gives no reason"
            raise AdminError(409, "fabric-unusable", f"{fabric} is not usable on {node.node_id}: {reason}")
        return offer


def plan_test(checks: Checks, wish: StartFabricTest) -> Plan:
    """The test that is wished for. Raises AdminError with a sentence."""
    if wish.all_pairs:
        if wish.nodes:
            raise AdminError(
                400, "bad-request", "give two nodes, or all_pairs; all_pairs takes every node of a fabric"
            )
        return _all_pairs(checks, wish)
    if wish.rounds is not None:
        raise AdminError(400, "bad-request", "rounds are of all_pairs; two nodes are one pair")
    if len(wish.nodes) != 2:
        raise AdminError(400, "bad-request", f"a test is between two nodes, not {len(wish.nodes)}")
    one, other = wish.nodes
    if one == other:
        raise AdminError(
            400,
            "same-node",
            f"{one} is named twice; bandwidth is tested between two nodes (llmgw ctl nodes lists them)",
        )
    # First what no waiting and no drain would change: nobody empties a node for a test that cannot be.
    first, second = (checks.must_exist(node_id) for node_id in (one, other))
    fabric = wish.fabric or _shared_fabric(first, second)
    for node in (first, second):
        checks.must_declare(node, fabric)
    for node_id in (one, other):
        checks.must_be_able(node_id)
    for node in (first, second):
        checks.must_offer(node, fabric)
    for node_id in (one, other):
        checks.must_be_free(node_id)
    count = len(rails(first, second, fabric))
    return Plan(
        fabric=fabric,
        rounds=[[(one, other)]],
        nodes=[one, other],
        planned=2 * count,
        notes=_unequal(first, second, fabric),
    )


def rails(one: Node, other: Node, fabric: str) -> list[tuple[Port, Port]]:
    """The ports of two nodes as NCCL pairs them: the Nth of one's fabric with the Nth of the other's."""
    return list(zip(_ports(one, fabric), _ports(other, fabric), strict=False))


def _all_pairs(checks: Checks, wish: StartFabricTest) -> Plan:
    fleet = checks.fleet
    known = sorted({offer.name for node in fleet.nodes.values() for offer in node.inventory.fabrics})
    fabric = wish.fabric
    if fabric is None:
        if len(known) != 1:
            raise AdminError(
                400,
                "which-fabric",
                f"name one fabric with --fabric: {_listed(known)}" if known else "no node declares a fabric",
            )
        fabric = known[0]
    elif fabric not in known:
        raise AdminError(
            404, "unknown-fabric", f"no node declares a fabric {fabric!r}; {_known('fabrics', known)}"
        )
    there, notes = [], []
    for node_id, node in sorted(fleet.nodes.items()):
        if any(offer.name == fabric for offer in node.inventory.fabrics):
            try:
                checks.must_offer(checks.must_be_free(node_id), fabric)
            except AdminError as error:
                notes.append(f"{node_id} is left out: {error}")
            else:
                there.append(node_id)
    if len(there) < 2:
        why = "; ".join(notes) or f"only {_listed(there)} is on it"
        raise AdminError(409, "too-few-nodes", f"{fabric} has fewer than two nodes to test: {why}")
    walk = rounds(there)[: wish.rounds]
    counts = [
        sum(2 * len(rails(fleet.nodes[one], fleet.nodes[other], fabric)) for one, other in pairs)
        for pairs in walk
    ]
    fitting = len(walk)
    while fitting > 1 and sum(counts[:fitting]) > MEASUREMENTS_MAX:
        fitting -= 1
    if fitting < len(walk):
        notes.append(
            f"only the first {fitting} of {len(walk)} rounds are walked: all are {sum(counts)} measurements"
        )
    return Plan(fabric=fabric, rounds=walk[:fitting], nodes=there, planned=sum(counts[:fitting]), notes=notes)


def _shared_fabric(one: Node, other: Node) -> str:
    shared = [offer.name for offer in one.inventory.fabrics if _declares(other, offer.name)]
    usable = [name for name in shared if one.fabric(name) is not None and other.fabric(name) is not None]
    if not shared:
        raise AdminError(
            409,
            "different-fabrics",
            f"{one.node_id} and {other.node_id} share no fabric: {one.node_id} {_on(one)}, "
            f"{other.node_id} {_on(other)}",
        )
    if len(usable) == 1 or (not usable and len(shared) == 1):
        return (usable or shared)[0]
    raise AdminError(
        400,
        "which-fabric",
        f"{one.node_id} and {other.node_id} share {_listed(usable or shared)}; name one with --fabric",
    )


def _declares(node: Node, fabric: str) -> bool:
    return any(offer.name == fabric for offer in node.inventory.fabrics)


def _ports(node: Node, fabric: str) -> list[Port]:
    offer = node.fabric(fabric)
    by_name = {f"{port.adapter}:{port.port}": port for port in node.inventory.ports}
    names = offer.adapters if offer is not None else []
    return [by_name[name] for name in names if name in by_name][:BANDWIDTH_PORTS_MAX]


def _unequal(one: Node, other: Node, fabric: str) -> list[str]:
    counts = [len(_ports(node, fabric)) for node in (one, other)]
    if counts[0] == counts[1]:
        return []
    return [
        f"{one.node_id} has {counts[0]} ports on {fabric} and {other.node_id} {counts[1]}: only the first "
        f"{min(counts)} are paired"
    ]


def _on(node: Node) -> str:
    names = [offer.name for offer in node.inventory.fabrics]
    return f"is on {_listed(names)}" if names else "declares none"


def _fabrics_of(node: Node) -> str:
    names = [offer.name for offer in node.inventory.fabrics]
    return f"it is on {_listed(names)}" if names else "it declares no fabric in its agent.yaml"


def _unknown_node(name: str, known: Iterable[str]) -> AdminError:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else _known("nodes", sorted(known))
    return AdminError(404, "unknown-node", f"there is no node {name!r}; {hint}")


def _known(what: str, names: Collection[str]) -> str:
    return f"the {what} are {_listed(names)}" if names else f"there are no {what}"


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:NAMES_SHOWN_MAX])
    return shown + (f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else "")
