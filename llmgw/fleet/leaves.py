"""How near to each other nodes of a fabric sit, and which of many sit nearest: leaves first, then tiers.

NCCL joins the Nth adapter of a node with the Nth of the next, so that what counts is counted rail by rail. Where
a node's adapters all hang on one leaf, and where each hangs on the leaf of its rail, two nodes with the same
leaves in the same order need no tier above.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple, Protocol, TypeVar

from llmgw.fleet.fabric_facts import FabricFacts

Leaves = tuple[str, ...]
"""As in `Place`: the leaf of each adapter of a node; empty is unknown."""
Wishes = tuple[int, ...]
"""What is wished for beside nearness, of a set of nodes; the smallest first."""

SEEDS_MAX = 8
"""From so many leaves, the fullest, a choice is grown when no leaf is enough."""


class Spread(NamedTuple):
    """How far apart a set of nodes sits; the smaller, the nearer."""

    leaves: float
    """Different leaves on a rail, the mean over rails: 1.0 is one leaf (on each rail)."""
    tiers: float
    """Tiers crossed between the two farthest nodes, the mean over rails."""


ONE_LEAF = Spread(1.0, 0.0)


class Block(Protocol):
    """Nodes with the same leaves, the best first."""

    @property
    def leaves(self) -> Leaves: ...

    @property
    def count(self) -> int: ...

    def wishes(self, taken: int) -> Wishes:
        """What is wished for, of the first `taken` nodes."""
        ...


B = TypeVar("B", bound=Block)
Packed = list[tuple[B, int]]
"""Blocks, and how many nodes are taken of each."""


def spread_of(nodes: Iterable[Leaves], facts: FabricFacts) -> Spread:
    """The spread of nodes. One whose leaves are unknown counts as sitting on leaves of its own, far away."""
    unknown = 0
    known: set[Leaves] = set()
    for leaves in nodes:
        if leaves:
            known.add(leaves)
        else:
            unknown += 1
    if not unknown and len(known) == 1:
        return ONE_LEAF
    if not known:
        return Spread(float(unknown), float(facts.far if unknown > 1 else 0))
    rails = max(map(len, known))
    different, tiers = 0, 0
    for rail in range(rails):
        on_rail = {leaves[rail] for leaves in known if rail < len(leaves) and leaves[rail]}
        different += max(1, len(on_rail))
        if len(on_rail) > 1:
            tiers += max(facts.distance(one, other) for one, other in combinations(on_rail, 2))
    if unknown:
        return Spread(different / rails + unknown, float(facts.far))
    return Spread(different / rails, tiers / rails)


def pack(fixed: Sequence[Leaves], blocks: Sequence[B], count: int, facts: FabricFacts) -> Packed[B]:
    """Which of the blocks' nodes join those that are `fixed`: `count` of them, as near as can be.

    One block is enough: that is found always. Where no two blocks share a leaf, the number of leaves is the
    smallest that is possible. Else, and for the tiers, the choice grows from some of the fullest blocks and the
    best is taken; the very best would cost exponential time. The blocks hold `count` nodes or more.
    """
    best = _grow(list(fixed), [], blocks, count, facts)
    if _spread(fixed, best, facts) == ONE_LEAF:
        return best
    best_key = _key(fixed, best, facts)
    seeds = sorted((block for block in blocks if block.leaves), key=lambda block: (-block.count, block.leaves))
    for seed in seeds[:SEEDS_MAX]:
        taken = min(seed.count, count)
        nodes = [*fixed, seed.leaves]
        rest = [block for block in blocks if block is not seed]
        packed = _grow(nodes, [(seed, taken)], rest, count - taken, facts)
        key = _key(fixed, packed, facts)
        if key < best_key:
            best, best_key = packed, key
    return best


def _grow(
    nodes: list[Leaves], packed: Packed[B], blocks: Sequence[B], left: int, facts: FabricFacts
) -> Packed[B]:
    """Add blocks until no node is left to find: one that is enough for the rest as soon as there is one."""
    rest = list(blocks)
    while left:
        # Nodes of unknown leaves are a leaf each: they come in when there are no others, or for the last seat.
        known = [block for block in rest if block.leaves]
        enough = [block for block in (rest if left == 1 else known or rest) if block.count >= left]
        if enough:
            found = _nearest(nodes, enough, left, facts)
            return [*packed, (found, left)]
        before = spread_of(nodes, facts).leaves if nodes else 0.0
        # What adds least for each node that it gives: the fullest, where each adds a leaf.
        found = min(known, key=lambda block: _gain(nodes, before, block, facts))
        packed = [*packed, (found, found.count)]
        nodes += _taken(found, found.count)
        left -= found.count
        rest.remove(found)
    return packed


def _nearest(nodes: list[Leaves], enough: Sequence[B], left: int, facts: FabricFacts) -> B:
    spreads = [spread_of([*nodes, *_taken(block, left)], facts) for block in enough]
    nearest = min(spreads)
    alike = [block for block, spread in zip(enough, spreads, strict=True) if spread == nearest]
    return min(alike, key=lambda block: (block.wishes(left), block.count, block.leaves))


def _gain(nodes: list[Leaves], before: float, block: Block, facts: FabricFacts) -> tuple[object, ...]:
    spread = spread_of([*nodes, *_taken(block, block.count)], facts)
    more = (spread.leaves - before) / block.count
    return more, spread.tiers, -block.count, block.wishes(block.count), block.leaves


def _taken(block: Block, count: int) -> list[Leaves]:
    return [block.leaves] if block.leaves else [()] * count


def _spread(fixed: Sequence[Leaves], packed: Packed[B], facts: FabricFacts) -> Spread:
    return spread_of([*fixed, *(leaves for block, taken in packed for leaves in _taken(block, taken))], facts)


def _key(fixed: Sequence[Leaves], packed: Packed[B], facts: FabricFacts) -> tuple[object, ...]:
    wishes = [block.wishes(taken) for block, taken in packed]
    left_over = sum(block.count - taken for block, taken in packed)
    return (
        _spread(fixed, packed, facts),
        tuple(map(sum, zip(*wishes, strict=True))),
        left_over,
        sorted(block.leaves for block, _ in packed),
    )
