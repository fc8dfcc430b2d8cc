"""Tests of all pairs of a fabric's nodes: their order, and what those that are not good have in common. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llmgw.messages.fabric_test_views import FabricTestResult

BLAMED_MAX = 16
PEERS_MIN = 2
"""With fewer there is nothing to tell one side of a pair from the other."""


def rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Every pair once, in rounds in which no node takes part twice: the circle method of round-robin tournaments.

    With n nodes there are n - 1 rounds, n for an odd n, in each of which one sits out.
    """
    circle: list[str | None] = list(nodes)
    if len(circle) % 2:
        circle.append(None)
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(one, other) for one, other in pairs if one is not None and other is not None])
        # The first stays, the others move on by one.
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


@dataclass(eq=False)
class _Suspect:
    """Something that measurements have in common, and those of them that are good and not."""

    name: str
    rank: int
    """The smaller is the more particular: it is blamed first where two explain the same."""
    failed: set[int] = field(default_factory=set)
    good: int = 0
    peers: set[str] = field(default_factory=set)


def in_common(
    results: Sequence[FabricTestResult],
    leaf_of: Callable[[str, int], str | None] = lambda node, rail: None,
    leaf_names: Mapping[str, str] | None = None,
) -> list[str]:
    """What the results that are not good have in common, in sentences, the one that explains most first.

    `leaf_of` is the leaf switch of a node's adapter on a rail (from 1), None where no map tells. Something is
    blamed when everything that was measured with it, with two other nodes at least, is not good.
    """
    suspects: dict[tuple[str, ...], _Suspect] = {}
    for at, result in enumerate(results):
        for key, name, rank, peer in _involved(result, leaf_of, leaf_names or {}):
            suspect = suspects.setdefault(key, _Suspect(name, rank))
            if result.grade == "good":
                suspect.good += 1
            else:
                suspect.failed.add(at)
                suspect.peers.add(peer)
    guilty = [one for one in suspects.values() if not one.good and len(one.peers) >= PEERS_MIN]
    left = {at for at, result in enumerate(results) if result.grade != "good"}
    sentences: list[str] = []
    while left and len(sentences) < BLAMED_MAX:
        best = max(guilty, key=lambda one: (len(one.failed & left), -one.rank, one.name), default=None)
        if best is None or not best.failed & left:
            break
        count = len(best.failed)
        sentences.append(f"{best.name}: none of the {count} measurements with it is good")
        left -= best.failed
    if left and len(results) > 1:
        count = len(left)
        told = (
            "1 measurement that is not good has" if count == 1 else f"{count} measurements that are not good have"
        )
        sentences.append(f"{told} nothing in common{' with others' if sentences else ''}")
    return sentences


def _involved(
    result: FabricTestResult, leaf_of: Callable[[str, int], str | None], leaf_names: Mapping[str, str]
) -> list[tuple[tuple[str, ...], str, int, str]]:
    """(key, name, rank, the other side) of everything that a measurement went through."""
    found: list[tuple[tuple[str, ...], str, int, str]] = []
    leaves = {node: leaf_of(node, result.rail) for node in result.nodes}
    sides = (
        (result.sender, result.sender_port, result.receiver, "sending"),
        (result.receiver, result.receiver_port, result.sender, "receiving"),
    )
    for node, port, peer, role in sides:
        adapter = port.partition(":")[0]
        leaf = leaves[node]
        to = f" to {leaf_names.get(leaf, leaf)}" if leaf is not None else ""
        found += [
            (("adapter", node, port), f"{adapter} of {node}, or its cable{to}", 1, peer),
            (("role", node, port, role), f"{adapter} of {node}, or its cable{to}, when {role}", 0, peer),
            (("node", node), f"{node} with all its adapters", 2, peer),
        ]
    known = sorted({leaf for leaf in leaves.values() if leaf is not None})
    for leaf in known:
        name = leaf_names.get(leaf, leaf)
        # Both its nodes count, or a leaf of two would have no second peer.
        for node in result.nodes:
            found.append((("leaf", leaf), f"leaf switch {name}", 4, node))
            if len(known) > 1:
                found.append((("uplinks", leaf), f"the cables from leaf switch {name} to the spine", 3, node))
    return found
