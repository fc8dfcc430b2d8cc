"""Which of the nodes that could host a profile come first: kept while a plan takes seats.

The thousandth replica of a plan is placed as fast as the first: only nodes that seats were taken on are scored
anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from llmgw.fleet.model import Node

if TYPE_CHECKING:
    from llmgw.fleet.placement import Room, Wanted

_Score = tuple[bool, int, int, int, str]
"""(suspect, failures, there, free, node id), smallest first. Suspects come last; then where the profile failed
and failed, since others may have what is lacking there; `there` counts shards of the model, which is spread over
nodes; the fewest free GPUs are the tightest fit."""


@dataclass(slots=True)
class _Group:
    """Nodes that choose alike: those with the same fabrics, or for a gang all those on one fabric."""

    fabrics: tuple[str, ...]
    heap: list[_Score] = field(default_factory=list)
    """Of its nodes; one that is no longer the node's score is dropped when it comes to the top."""
    there: int = 0
    """Shards of the model on all its nodes."""


class Ranking:
    """The feasible nodes of one placement question, best first."""

    def __init__(self, wanted: Wanted, room: Room, feasible: Iterable[Node]) -> None:
        self._wanted = wanted
        self._room = room
        self._gang = wanted.profile.nodes > 1
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._nodes = {node.node_id: node for node in feasible}
        self._scores: dict[str, _Score] = {}
        for node in self._nodes.values():
            score = self._scores[node.node_id] = self._score(node)
            for group in self._groups_of(node):
                group.heap.append(score)
                group.there += score[2]
        for group in self._groups.values():
            heapify(group.heap)

    def node(self, node_id: str) -> Node | None:
        """The node while it is feasible, or None."""
        return self._nodes.get(node_id)

    def changed(self, node: Node, *, feasible: bool) -> None:
        """Seats were taken on a node that was feasible so far."""
        before = self._scores.pop(node.node_id)
        after = self._score(node) if feasible else None
        for group in self._groups_of(node):
            group.there -= before[2]
            if after is not None:
                group.there += after[2]
                heappush(group.heap, after)
        if after is not None:
            self._scores[node.node_id] = after
        else:
            del self._nodes[node.node_id]

    def best(self) -> tuple[list[Node], str | None] | None:
        """The nodes by rank and the fabric that they stay on, or None when there are too few."""
        return self._best_gang() if self._gang else self._best_single()

    def _best_single(self) -> tuple[list[Node], str | None] | None:
        best: tuple[tuple[object, ...], str] | None = None
        for group in self._groups.values():
            for suspect, failures, there, free, node_id in self._first(group, 1):
                # Whole fabrics are kept free for replicas of several nodes: a node without a fabric first, then
                # the fabric that already holds the most small ones; only then the tightest fit.
                singles = max([self._room.singles_on_fabric.get(name, 0) for name in group.fabrics], default=0)
                score = (suspect, failures, there, bool(group.fabrics), -singles, free, node_id)
                if best is None or score < best[0]:
                    best = score, node_id
        return None if best is None else ([self._nodes[best[1]]], self._wanted.profile.fabric)

    def _best_gang(self) -> tuple[list[Node], str] | None:
        """The best nodes of one fabric. The first leads, which asks more of a node than to follow."""
        best: tuple[tuple[int, int, int, int, str], list[_Score]] | None = None
        size = self._wanted.profile.nodes
        for group in self._groups.values():
            first = self._first(group, size)
            if len(first) < size:
                continue
            suspects, failures = sum(score[0] for score in first), sum(score[1] for score in first)
            score = (suspects, failures, group.there, sum(score[3] for score in first), group.fabrics[0])
            if best is None or score < best[0]:
                best = score, first
        return None if best is None else ([self._nodes[score[4]] for score in best[1]], best[0][4])

    def _first(self, group: _Group, count: int) -> list[_Score]:
        first: list[_Score] = []
        heap = group.heap
        while heap and len(first) < count:
            score = heappop(heap)
            if self._scores.get(score[4]) is score:
                first.append(score)
        for score in first:
            heappush(heap, score)
        return first

    def _score(self, node: Node) -> _Score:
        room, node_id = self._room, node.node_id
        return (
            node.suspect is not None,
            room.failures(node, self._wanted) if room.failed_on else 0,
            room.replicas_of.get((self._wanted.model, node_id), 0),
            len(room.free(node)),
            node_id,
        )

    def _groups_of(self, node: Node) -> list[_Group]:
        fabrics = self._room.fabrics(node)
        if not self._gang:
            return [self._groups.get(fabrics) or self._group(fabrics)]
        named = self._wanted.profile.fabric
        return [
            self._groups.get((name,)) or self._group((name,))
            for name in fabrics
            if named is None or name == named
        ]

    def _group(self, fabrics: tuple[str, ...]) -> _Group:
        group = self._groups[fabrics] = _Group(fabrics)
        return group
