"""Where a replica goes: feasible, then score, then choose.

Every filter has one constant sentence. The same filters, tallied, are the answer to "why is nothing running".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from llmgw.config.catalog import Profile
from llmgw.fleet.choice_words import comes_last, why_not, why_these
from llmgw.fleet.fabric_facts import FabricFacts
from llmgw.fleet.fabric_test_gate import FabricTestGate
from llmgw.fleet.gpu_choice import choose_gpus
from llmgw.fleet.model import Fleet, Node, NodeState, ReplicaState, Seat
from llmgw.fleet.ranking import Ranking


@dataclass(frozen=True, slots=True)
class Wanted:
    """One placement question: a profile of a model, asked of every node."""

    model: str
    profile: Profile


@dataclass(slots=True)
class Room:
    """What is free while a plan is made. Seats taken in the plan are taken out at once.

    It also keeps what does not change within a plan, so that many replicas of a profile are placed without
    asking every filter of every node again.
    """

    used: dict[str, set[str]]
    replicas_of: dict[tuple[str, str], int]
    """(model, node id) → shards of that model there."""
    singles_on_fabric: dict[str, int]
    """Fabric → GPUs held there by replicas of one node."""
    facts: FabricFacts = field(default_factory=FabricFacts)
    """Where nodes sit on their fabrics, as far as that is known."""
    ending: frozenset[str] = frozenset()
    """Nodes that have yet to say that a shard of a failed replica has ended."""
    failed_on: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """(model, profile, node id) → shards of it that failed there lately, while the profile's starts fail."""
    fabric_test_gate: FabricTestGate | None = None
    """Which nodes have passed a test of their fabric; None: that is not asked."""
    _usable: dict[str, list[str]] = field(default_factory=dict)
    _free: dict[str, list[str]] = field(default_factory=dict)
    _fabrics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _rankings: dict[tuple[str, str], Ranking] = field(default_factory=dict)
    """(model, profile) → nodes that no filter refused when it was asked last."""
    _asked: dict[tuple[str, str], int] = field(default_factory=dict)
    """(model, profile) → how many of `_taken` it has seen."""
    _taken: list[str] = field(default_factory=list)
    """Nodes that seats were taken on, in order."""

    @classmethod
    def of(cls, fleet: Fleet) -> Room:
        """The room in the fleet as it stands."""
        ending = frozenset(
            shard.node_id
            for replica in fleet.replicas.values()
            if replica.state is ReplicaState.FAILED
            for shard in replica.shards.values()
            if not shard.over
        )
        room = cls(
            used=fleet.gpus_in_use(),
            replicas_of={},
            singles_on_fabric={},
            facts=fleet.fabric_facts,
            ending=ending,
            fabric_test_gate=fleet.fabric_test_gate,
        )
        for key, backoff in fleet.backoff.items():
            if backoff.failures > 1:
                for node in fleet.nodes.values():
                    room._count_failures(key, node)
        for replica in fleet.replicas.values():
            if not replica.live:
                continue
            for seat in replica.seats.values():
                room._count(fleet, replica.model, replica.nodes, seat)
        return room

    def take(self, fleet: Fleet, model: str, nodes: int, seats: Iterable[Seat]) -> None:
        """Take seats out of the room."""
        for seat in seats:
            self.used.setdefault(seat.node_id, set()).update(seat.gpus)
            self._free.pop(seat.node_id, None)
            self._taken.append(seat.node_id)
            self._count(fleet, model, nodes, seat)

    def free(self, node: Node) -> list[str]:
        """Free usable GPUs of a node, lowest index first."""
        found = self._free.get(node.node_id)
        if found is None:
            used = self.used.get(node.node_id, ())
            found = self._free[node.node_id] = [uuid for uuid in self.usable(node) if uuid not in used]
        return found

    def usable(self, node: Node) -> list[str]:
        """Usable GPUs of a node, free or not, lowest index first."""
        found = self._usable.get(node.node_id)
        if found is None:
            found = self._usable[node.node_id] = [
                gpu.uuid for gpu in sorted(node.gpus, key=lambda gpu: gpu.index) if gpu.usable
            ]
        return found

    def fabrics(self, node: Node) -> tuple[str, ...]:
        """Names of the node's usable fabrics; where tests are required, of those on which it has passed one."""
        found = self._fabrics.get(node.node_id)
        if found is None:
            gate = self.fabric_test_gate
            found = self._fabrics[node.node_id] = tuple(
                name
                for name in dict.fromkeys(node.usable_fabrics)
                if gate is None or gate.opens(node.node_id, name)
            )
        return found

    def ranking(self, fleet: Fleet, wanted: Wanted) -> Ranking:
        """Nodes that no filter refuses, the best first."""
        key = (wanted.model, wanted.profile.name)
        ranking = self._rankings.get(key)
        if ranking is None:
            able = [node for node in fleet.nodes.values() if not self._refuses(node, wanted)]
            ranking = self._rankings[key] = Ranking(wanted, self, able)
        else:
            # A plan only takes: a node that was refused stays refused, and only those it took from can follow.
            for node_id in dict.fromkeys(self._taken[self._asked[key] :]):
                node = ranking.node(node_id)
                if node is not None:
                    ranking.changed(node, feasible=not self._refuses(node, wanted))
        self._asked[key] = len(self._taken)
        return ranking

    def _refuses(self, node: Node, wanted: Wanted) -> bool:
        # Which filter it is matters to people only; on a full fleet the last one refuses most nodes.
        for candidate in _LAST_FIRST:  # noqa: SIM110 - a generator costs more than the filters
            if candidate.refuses(node, wanted, self):
                return True
        return False

    def failures(self, node: Node, wanted: Wanted) -> int:
        """How often the profile failed on the node of late; 0 unless it failed more than once in a row."""
        return self.failed_on.get((wanted.model, wanted.profile.name, node.node_id), 0)

    def _count_failures(self, key: tuple[str, str], node: Node) -> None:
        count = sum(1 for _, failed in node.failures if failed == key)
        if count:
            self.failed_on[*key, node.node_id] = count

    def _count(self, fleet: Fleet, model: str, nodes: int, seat: Seat) -> None:
        key = (model, seat.node_id)
        self.replicas_of[key] = self.replicas_of.get(key, 0) + 1
        node = fleet.nodes.get(seat.node_id)
        if nodes == 1 and node is not None:
            for fabric in self.fabrics(node):
                self.singles_on_fabric[fabric] = self.singles_on_fabric.get(fabric, 0) + len(seat.gpus)


@dataclass(frozen=True, slots=True)
class Filter:
    """One reason to refuse a node. `lasting` is True when waiting alone will not help.

    `detail` is what the node itself says about it, as a sentence, where it says something; `detail_in` the same
    where it takes the room to say it.
    """

    reason: str
    refuses: Callable[[Node, Wanted, Room], bool]
    lasting: bool = False
    detail: Callable[[Node, Wanted], str | None] = lambda node, wanted: None
    detail_in: Callable[[Node, Wanted, Room], str | None] | None = None

    def said_by(self, node: Node, wanted: Wanted, room: Room) -> str | None:
        """What there is to say about a refusal."""
        return self.detail(node, wanted) if self.detail_in is None else self.detail_in(node, wanted, room)


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
    said = [gate.why_not(node.node_id, name) for name in _names(node, wanted)] if gate is not None else []
    return "; ".join(said) or None


def _unknown_network(node: Node, wanted: Wanted, room: Room) -> bool:
    if wanted.profile.nodes == 1 or not room.facts.split:
        return False
    names = [name for name in room.fabrics(node) if wanted.profile.fabric in (None, name)]
    return not any(room.facts.network(node.node_id, name) for name in names)


def _networks_there(node: Node, wanted: Wanted) -> str:
    names = ", ".join(_names(node, wanted))
    return (
        f"several physical fabrics are called {names}, and nobody knows on which of them it is; "
        "`llmgw ctl fabrics` lists them: give each a name of its own in agent.yaml"
    )


def _names(node: Node, wanted: Wanted) -> list[str]:
    """The usable fabrics that a replica of several nodes may use there."""
    return [name for name in node.usable_fabrics if wanted.profile.fabric in (None, name)]


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
    Filter("is on an unknown one of several fabrics of one name", _unknown_network, detail=_networks_there),
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


@dataclass(frozen=True, slots=True)
class Chosen:
    """Seats by rank, and the fabric that a replica of several nodes stays on."""

    seats: tuple[Seat, ...]
    fabric: str | None


@dataclass(slots=True)
class Verdict:
    """The answer: seats and fabric, or nothing and why."""

    seats: tuple[Seat, ...] | None
    fabric: str | None = None
    feasible: list[str] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    """Filter's sentence → nodes it refused."""
    details: dict[str, str] = field(default_factory=dict)
    """Node → what it says itself about the refusal, as a sentence."""
    reason: str = ""
    """Why there are no seats, in one sentence."""
    decided: list[str] = field(default_factory=list)
    """For a replica of several nodes: how these sit, and what speaks for them rather than others; sentences."""
    last: dict[str, str] = field(default_factory=dict)
    """Feasible node → why it comes last, as a sentence."""


def refusal(node: Node, wanted: Wanted, room: Room) -> Filter | None:
    """The first filter that refuses the node, or None."""
    for candidate in FILTERS:
        if candidate.refuses(node, wanted, room):
            return candidate
    return None


def choose_seats(fleet: Fleet, wanted: Wanted, room: Room) -> Chosen | None:
    """Seats for one replica, or None; `place` says why. Nothing is taken out of the room."""
    return _choose(room.ranking(fleet, wanted), wanted, room)


def never(fleet: Fleet, wanted: Wanted) -> str | None:
    """Why no node that is known could host it, were the whole fleet empty and well; None when some could.

    A node that has not registered yet may offer anything, so it always could. Without any node at all the answer
    is None: nothing is known.
    """
    profile = wanted.profile
    room = Room(used={}, replicas_of={}, singles_on_fabric={}, facts=fleet.fabric_facts)
    able: list[Node] = []
    refused: dict[str, list[str]] = {}
    for node in fleet.nodes.values():
        reason = next((f.reason for f in FILTERS if f.lasting and f.refuses(node, wanted, room)), None)
        if reason is None or node.state is NodeState.UNKNOWN:
            able.append(node)
        else:
            refused.setdefault(reason, []).append(node.node_id)
    if not fleet.nodes or any(
        node.state is NodeState.UNKNOWN or _unknown_network(node, wanted, room) for node in able
    ):
        return None
    if able and (profile.nodes == 1 or Ranking(wanted, room, able).best() is not None):
        return None
    return why_not(fleet, profile, [node.node_id for node in able], refused)


def place(fleet: Fleet, wanted: Wanted, room: Room) -> Verdict:
    """What `choose_seats` finds, with every filter's tally: the answer for people."""
    verdict = Verdict(seats=None)
    feasible: list[Node] = []
    for node in sorted(fleet.nodes.values(), key=lambda node: node.node_id):
        refused_by = refusal(node, wanted, room)
        if refused_by is None:
            feasible.append(node)
        else:
            verdict.refused.setdefault(refused_by.reason, []).append(node.node_id)
            detail = refused_by.said_by(node, wanted, room)
            if detail is not None:
                verdict.details[node.node_id] = detail
    verdict.feasible = [node.node_id for node in feasible]
    ranking = Ranking(wanted, room, feasible)
    chosen = _choose(ranking, wanted, room)
    if chosen is None:
        verdict.reason = why_not(fleet, wanted.profile, verdict.feasible, verdict.refused)
    else:
        verdict.seats, verdict.fabric = chosen.seats, chosen.fabric
    if wanted.profile.nodes > 1:
        verdict.decided = why_these(ranking.choices(), room.facts)
        for node in feasible:
            why = comes_last(node, room.failures(node, wanted), _names(node, wanted), room.facts)
            if why is not None:
                verdict.last[node.node_id] = why
    return verdict


def _choose(ranking: Ranking, wanted: Wanted, room: Room) -> Chosen | None:
    found = ranking.best()
    if found is None:
        return None
    nodes, fabric = found
    gpus = wanted.profile.gpus_per_node
    seats = (Seat(node.node_id, choose_gpus(node.gpus, room.free(node), gpus)) for node in nodes)
    return Chosen(tuple(seats), fabric)
