"""What is free while a plan is made, and what is asked of it. Which nodes are good enough is not known here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from llmgw.config.catalog import Profile
from llmgw.fleet.fabric_facts import FabricFacts
from llmgw.fleet.fabric_test_gate import FabricTestGate
from llmgw.fleet.model import Fleet, Node, ReplicaState, Seat
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

    def ranking(self, fleet: Fleet, wanted: Wanted, refuses: Refuses) -> Ranking:
        """Nodes that are not refused, the best first. `refuses` is the same whenever the same is wanted."""
        key = (wanted.model, wanted.profile.name)
        ranking = self._rankings.get(key)
        if ranking is None:
            able = [node for node in fleet.nodes.values() if not refuses(node, wanted, self)]
            ranking = self._rankings[key] = Ranking(wanted, self, able)
        else:
            # A plan only takes: a node that was refused stays refused, and only those it took from can follow.
            for node_id in dict.fromkeys(self._taken[self._asked[key] :]):
                node = ranking.node(node_id)
                if node is not None:
                    ranking.changed(node, feasible=not refuses(node, wanted, self))
        self._asked[key] = len(self._taken)
        return ranking

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


Refuses = Callable[[Node, Wanted, Room], bool]
"""Whether a node is out of the question."""
