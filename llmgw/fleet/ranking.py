"""Which of the nodes that could host a profile come first: kept while a plan takes seats.

The thousandth replica of a plan is placed as fast as the first: only nodes that seats were taken on are scored
anew, and only fabrics with such nodes are chosen from anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from llmgw.fleet.fabric_facts import NOWHERE, FabricFacts, Place
from llmgw.fleet.leaves import ONE_LEAF, Leaves, Spread, Wishes, pack, spread_of
from llmgw.fleet.model import Node

if TYPE_CHECKING:
    from llmgw.fleet.room import Room, Wanted

_Score = tuple[bool, int, bool, bool, int, int, str]
"""(suspect, failures, doubted, off its rail, there, free, node id), smallest first. Suspects come last; then
where the profile failed and failed, since others may have what is lacking there; then nodes whose links are
doubted; `there` counts shards of the model, which is spread over nodes; the fewest free GPUs are the tightest
fit. What is said of a fabric counts for replicas of several nodes only."""
_Merit = tuple[bool, int, bool]
"""The beginning of a score: how far a node is to be believed. It never changes while a plan takes seats."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Nodes for a replica of several, and what speaks for them, in the order in which it counts; the less the
    better.
    """

    node_ids: tuple[str, ...]
    """By rank."""
    fabric: str
    physical: str | None
    suspects: int
    failures: int
    doubted: int
    spread: Spread
    off_rail: int
    there: int
    """Shards of the model on all nodes of the fabric."""
    beside: int
    """Shards of the model on these nodes; decides between leaves of one fabric only."""
    free: int

    @property
    def key(self) -> tuple[object, ...]:
        """Compares choices of different fabrics."""
        return (
            *(self.suspects, self.failures, self.doubted, self.spread, self.off_rail, self.there, self.free),
            *(self.fabric, self.physical or ""),
        )


@dataclass(slots=True)
class _Block:
    """Nodes of one merit with the same leaves."""

    leaves: Leaves
    size: int
    """No replica takes more."""
    scores: dict[str, _Score]
    """Of all nodes of the fabric."""
    heap: list[_Score] = field(default_factory=list)
    count: int = 0
    _top: list[_Score] | None = None

    def changed(self) -> None:
        self._top = None

    def top(self) -> list[_Score]:
        """The best nodes, as many as a replica can take."""
        if self._top is None:
            self._top = _first(self.heap, self.scores, self.size)
        return self._top

    def wishes(self, taken: int) -> Wishes:
        first = self.top()[:taken]
        return (
            sum(score[3] for score in first),
            sum(score[4] for score in first),
            sum(score[5] for score in first),
        )


@dataclass(slots=True)
class _Group:
    """Nodes that choose alike: those with the same fabrics, or for a gang all those on one network."""

    fabrics: tuple[str, ...]
    physical: str | None = None
    scores: dict[str, _Score] = field(default_factory=dict)
    heap: list[_Score] = field(default_factory=list)
    """Of its nodes; one that is no longer the node's score is dropped when it comes to the top."""
    there: int = 0
    """Shards of the model on all its nodes."""
    leaves: dict[str, Leaves] = field(default_factory=dict)
    """Node → its leaves, where they are known."""
    blocks: dict[_Merit, dict[Leaves, _Block]] = field(default_factory=dict)
    """Empty where nobody has mapped the network."""
    chosen: Choice | None = None
    stale: bool = True
    """True when `chosen` was found before the last change."""

    def block_of(self, score: _Score) -> _Block | None:
        """Where a node stands among those with its leaves."""
        of_merit = self.blocks.get(_merit(score))
        return of_merit[self.leaves.get(score[-1], ())] if of_merit is not None else None


class Ranking:
    """The feasible nodes of one placement question, best first."""

    def __init__(self, wanted: Wanted, room: Room, feasible: Iterable[Node]) -> None:
        self._wanted = wanted
        self._room = room
        self._facts: FabricFacts = room.facts
        self._gang = wanted.profile.nodes > 1
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._nodes = {node.node_id: node for node in feasible}
        for node in self._nodes.values():
            for group in self._groups_of(node):
                place = self._place(node, group)
                score = group.scores[node.node_id] = self._score(node, place)
                if place.leaves:
                    group.leaves[node.node_id] = place.leaves
                group.heap.append(score)
                group.there += score[4]
        for group in self._groups.values():
            # Not by the nodes that are feasible now: how a fabric compares does not change while a plan fills it.
            if self._gang and (group.fabrics[0], group.physical) in self._facts.mapped:
                self._sort_by_leaves(group)
            heapify(group.heap)

    def node(self, node_id: str) -> Node | None:
        """The node while it is feasible, or None."""
        return self._nodes.get(node_id)

    def changed(self, node: Node, *, feasible: bool) -> None:
        """Seats were taken on a node that was feasible so far."""
        for group in self._groups_of(node):
            before = group.scores.pop(node.node_id)
            block = group.block_of(before)
            group.stale = True
            group.there -= before[4]
            if block is not None:
                block.changed()
            if feasible:
                after = group.scores[node.node_id] = self._score(node, self._place(node, group))
                group.there += after[4]
                heappush(group.heap, after)
                if block is not None:
                    heappush(block.heap, after)
            elif block is not None:
                block.count -= 1
        if not feasible:
            del self._nodes[node.node_id]

    def best(self) -> tuple[list[Node], str | None] | None:
        """The nodes by rank and the fabric that they stay on, or None when there are too few."""
        if not self._gang:
            return self._best_single()
        best = min(self._choices(), key=lambda choice: choice.key, default=None)
        return None if best is None else ([self._nodes[node_id] for node_id in best.node_ids], best.fabric)

    def choices(self) -> list[Choice]:
        """For a replica of several nodes: what `best` finds, and after it what would be taken were that not
        there, the best first: other leaves of the same fabric, and the other fabrics.
        """
        found = sorted(self._choices(), key=lambda choice: choice.key)
        if not found:
            return []
        group = self._groups[found[0].fabric, found[0].physical]
        used = {group.leaves.get(node_id, ()) for node_id in found[0].node_ids}
        other = self._choose(group, without=used) if group.blocks else None
        return [found[0], *sorted([*found[1:], *([other] if other else [])], key=lambda choice: choice.key)]

    def _best_single(self) -> tuple[list[Node], str | None] | None:
        best: tuple[tuple[object, ...], str] | None = None
        for group in self._groups.values():
            for suspect, failures, _, _, there, free, node_id in _first(group.heap, group.scores, 1):
                # Whole fabrics are kept free for replicas of several nodes: a node without a fabric first, then
                # the fabric that already holds the most small ones; only then the tightest fit.
                singles = max([self._room.singles_on_fabric.get(name, 0) for name in group.fabrics], default=0)
                score = (suspect, failures, there, bool(group.fabrics), -singles, free, node_id)
                if best is None or score < best[0]:
                    best = score, node_id
        return None if best is None else ([self._nodes[best[1]]], self._wanted.profile.fabric)

    def _choices(self) -> list[Choice]:
        """The best of each network. The first node leads, which asks more of it than to follow."""
        for group in self._groups.values():
            if group.stale:
                group.chosen, group.stale = self._choose(group), False
        return [group.chosen for group in self._groups.values() if group.chosen is not None]

    def _choose(self, group: _Group, without: Collection[Leaves] = ()) -> Choice | None:
        size = self._wanted.profile.nodes
        first = _first(group.heap, group.scores, size)
        if len(first) < size:
            return None
        if not group.blocks:
            # A fabric that nobody has mapped may be a single leaf, and is compared as if it were.
            return self._choice(group, first, ONE_LEAF)
        # Whoever is better to be believed than the last of them is taken in any case; who of those that are
        # believed as much as the last, is a question of leaves.
        merit = _merit(first[-1])
        fixed = [score for score in first if _merit(score) < merit]
        blocks = [block for leaves, block in group.blocks[merit].items() if block.count and leaves not in without]
        if sum(block.count for block in blocks) < size - len(fixed):
            return None
        of_fixed = [group.leaves.get(score[-1], ()) for score in fixed]
        packed = pack(of_fixed, blocks, size - len(fixed), self._facts)
        taken = [*fixed, *(score for block, count in packed for score in block.top()[:count])]
        taken.sort()
        # Neighbours by rank are neighbours in NCCL's ring: those of a leaf stand together.
        order = list(dict.fromkeys(group.leaves.get(score[-1], ()) for score in taken))
        taken.sort(key=lambda score: order.index(group.leaves.get(score[-1], ())))
        spread = spread_of([group.leaves.get(score[-1], ()) for score in taken], self._facts)
        return self._choice(group, taken, spread)

    def _choice(self, group: _Group, taken: Sequence[_Score], spread: Spread) -> Choice:
        return Choice(
            node_ids=tuple(score[-1] for score in taken),
            fabric=group.fabrics[0],
            physical=group.physical,
            suspects=sum(score[0] for score in taken),
            failures=sum(score[1] for score in taken),
            doubted=sum(score[2] for score in taken),
            spread=spread,
            off_rail=sum(score[3] for score in taken),
            there=group.there,
            beside=sum(score[4] for score in taken),
            free=sum(score[5] for score in taken),
        )

    def _sort_by_leaves(self, group: _Group) -> None:
        size = self._wanted.profile.nodes
        for score in group.heap:
            leaves = group.leaves.get(score[-1], ())
            of_merit = group.blocks.setdefault(_merit(score), {})
            block = of_merit.get(leaves)
            if block is None:
                block = of_merit[leaves] = _Block(leaves, size, group.scores)
            block.heap.append(score)
            block.count += 1
        for of_merit in group.blocks.values():
            for block in of_merit.values():
                heapify(block.heap)

    def _place(self, node: Node, group: _Group) -> Place:
        return self._facts.place(node.node_id, group.fabrics[0]) if self._gang else NOWHERE

    def _score(self, node: Node, place: Place) -> _Score:
        room, node_id = self._room, node.node_id
        return (
            node.suspect is not None,
            room.failures(node, self._wanted) if room.failed_on else 0,
            bool(place.doubts),
            place.aligned is False,
            room.replicas_of.get((self._wanted.model, node_id), 0),
            len(room.free(node)),
            node_id,
        )

    def _groups_of(self, node: Node) -> list[_Group]:
        fabrics = self._room.fabrics(node)
        if not self._gang:
            return [self._groups.get(fabrics) or self._group(fabrics, fabrics, None)]
        named = self._wanted.profile.fabric
        found = []
        for name in fabrics:
            network = self._facts.network(node.node_id, name) if named is None or name == named else None
            if network is not None:
                found.append(self._groups.get(network) or self._group(network, (name,), network[1]))
        return found

    def _group(self, key: tuple[object, ...], fabrics: tuple[str, ...], physical: str | None) -> _Group:
        group = self._groups[key] = _Group(fabrics, physical)
        return group


def _merit(score: _Score) -> _Merit:
    return score[0], score[1], score[2]


def _first(heap: list[_Score], scores: dict[str, _Score], count: int) -> list[_Score]:
    first: list[_Score] = []
    while heap and len(first) < count:
        score = heappop(heap)
        if scores.get(score[-1]) is score:
            first.append(score)
    for score in first:
        heappush(heap, score)
    return first
