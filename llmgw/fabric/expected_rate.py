"""Cables that run below the rate that both their ends could do, judged by kinds first and by their likes else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal

import msgspec

from llmgw.fabric.kinds import Ability, ability_of, sold_at_half_width
from llmgw.fabric.rates import UNKNOWN_SPEED, format_rate, rate_gbps, speed_rank
from llmgw.fabric.topology import Link, Node, Topology, trunks

LIKES_MIN = 3
"""So many adapters of a kind on a switch tell what the rest of them should do."""
LIKES_SHARE = 0.75

Rate = tuple[int, str]
Fault = Literal["speed", "width", "speed and width"]
Judge = Literal["kinds", "trunk", "likes"]


class SlowCable(msgspec.Struct):
    """A cable below its rate: what it runs at, what it should, what is short, and how that is known."""

    link: Link
    rate: Rate
    expected: Rate
    fault: Fault
    judged_by: Judge
    why: str


def find_slow_cables(topology: Topology) -> list[SlowCable]:
    """All of them, the slowest first. A rate of `???`, and what nothing tells of, is never called slow.

    A cable is judged by the lower of its two ends' rates. By kinds: both ends' device ids (or products) tell
    their speed, and the ports are whole or split. Else by the best cable of its trunk; else, for an adapter,
    by three quarters of the adapters of its kind on the same switch.
    """
    judge = _Judge(topology)
    slow = [found for link in topology.links if (found := judge.judge(link)) is not None]
    return sorted(slow, key=lambda cable: (rate_gbps(*cable.rate) or 0.0) / (rate_gbps(*cable.expected) or 1.0))


class _Judge:
    def __init__(self, topology: Topology) -> None:
        self.abilities: dict[str, Ability | None] = {
            node.id: ability_of(node) for node in topology.nodes.values()
        }
        self.best_of_trunk: dict[tuple[str, str], Rate] = {}
        for ends, links in trunks(topology.links).items():
            rates = _known(links)
            if rates:
                self.best_of_trunk[ends] = max(rates, key=_order)
        self.likes = _likes(topology.links)
        self.half_width = _half_width_kinds(topology.links)

    def judge(self, link: Link) -> SlowCable | None:
        rate = link.rate
        if rate is None or rate[1] == UNKNOWN_SPEED or "sharp" in (link.a.kind, link.b.kind):
            return None
        for expected, judged_by in self._expectations(link):
            if expected is not None and (fault := _fault(rate, expected)) is not None:
                return SlowCable(link, rate, expected, fault, judged_by, _why(rate, expected, fault, judged_by))
        return None

    def _expectations(self, link: Link) -> Iterable[tuple[Rate | None, Judge]]:
        yield self._by_kinds(link), "kinds"
        yield self.best_of_trunk.get((link.a.id, link.b.id)), "trunk"
        ends = _adapter_and_switch(link)
        if ends is not None and self.abilities[ends[0].id] is None:
            yield self.likes.get((ends[0].device_id, ends[1].id)), "likes"

    def _by_kinds(self, link: Link) -> Rate | None:
        a, b = self.abilities[link.a.id], self.abilities[link.b.id]
        if a is None or b is None:
            return None
        speed = min(a.speed, b.speed, key=speed_rank)
        width = min(a.width, b.width)
        ends = _adapter_and_switch(link)
        if ends is not None and (ends[0].device_id, speed) in self.half_width:
            width = min(width, 2)
        return width, speed


def _likes(links: Iterable[Link]) -> dict[tuple[int | None, str], Rate]:
    """What most adapters of one kind on one switch run at, by (device id, the switch's id)."""
    groups: dict[tuple[int | None, str], Counter[Rate]] = defaultdict(Counter)
    for link in links:
        ends = _adapter_and_switch(link)
        rate = link.rate
        if ends is not None and ends[0].device_id and rate is not None and rate[1] != UNKNOWN_SPEED:
            groups[ends[0].device_id, ends[1].id][rate] += 1
    found = {}
    for kind, rates in groups.items():
        rate, count = rates.most_common(1)[0]
        if rates.total() >= LIKES_MIN and count >= LIKES_SHARE * rates.total():
            found[kind] = rate
    return found


def _half_width_kinds(links: Iterable[Link]) -> set[tuple[int | None, str]]:
    """(device id, speed) of cards sold with two lanes at the same device id, where most of them run on two."""
    widths: dict[tuple[int | None, str], Counter[int]] = defaultdict(Counter)
    for link in links:
        ends = _adapter_and_switch(link)
        if ends is not None and link.rate is not None and sold_at_half_width(ends[0]):
            widths[ends[0].device_id, link.rate[1]][link.rate[0]] += 1
    return {kind for kind, seen in widths.items() if seen[2] >= LIKES_SHARE * seen.total()}


def _adapter_and_switch(link: Link) -> tuple[Node, Node] | None:
    if link.a.kind == "adapter" and link.b.kind == "switch":
        return link.a, link.b
    if link.b.kind == "adapter" and link.a.kind == "switch":
        return link.b, link.a
    return None


def _known(links: Iterable[Link]) -> list[Rate]:
    return [rate for link in links if (rate := link.rate) is not None and rate[1] != UNKNOWN_SPEED]


def _order(rate: Rate) -> tuple[float, int]:
    return rate_gbps(*rate) or 0.0, speed_rank(rate[1])


def _fault(rate: Rate, expected: Rate) -> Fault | None:
    narrow = rate[0] < expected[0]
    slow = speed_rank(rate[1]) < speed_rank(expected[1])
    if (rate_gbps(*rate) or 0.0) > (rate_gbps(*expected) or 0.0):
        return None
    if narrow and slow:
        return "speed and width"
    return "width" if narrow else "speed" if slow else None


def _why(rate: Rate, expected: Rate, fault: Fault, judged_by: Judge) -> str:
    gbps = f"{rate_gbps(*rate):g} of {rate_gbps(*expected):g} Gb/s"
    known = {
        "kinds": f"both ends can do {format_rate(expected)}",
        "trunk": "another cable between the same two switches runs faster",
        "likes": "the other adapters of this kind on the switch run faster",
    }[judged_by]
    short = {
        "speed": f"its speed is {rate[1]}, not {expected[1]}",
        "width": f"it runs on {rate[0]} of {expected[0]} lanes",
        "speed and width": f"it runs on {rate[0]} of {expected[0]} lanes at {rate[1]}, not {expected[1]}",
    }[fault]
    return f"{gbps}: {short}; {known}"
