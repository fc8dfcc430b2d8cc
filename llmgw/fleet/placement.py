"""Where a replica goes: feasible, then score, then choose; for people with the tally of the filters."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmgw.fleet.choice_words import comes_last, why_not, why_these
from llmgw.fleet.filters import FILTERS, fabrics_for, refusal, refuses, unknown_network
from llmgw.fleet.gpu_choice import choose_gpus
from llmgw.fleet.model import Fleet, Node, NodeState, Seat
from llmgw.fleet.ranking import Ranking
from llmgw.fleet.room import Room, Wanted


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


def choose_seats(fleet: Fleet, wanted: Wanted, room: Room) -> Chosen | None:
    """Seats for one replica, or None; `place` says why. Nothing is taken out of the room."""
    return _choose(room.ranking(fleet, wanted, refuses), wanted, room)


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
        node.state is NodeState.UNKNOWN or unknown_network(node, wanted, room) for node in able
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
            why = comes_last(node, room.failures(node, wanted), fabrics_for(node, wanted), room.facts)
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
