"""Which physical fabric an observation is of: first named by its lowest manager, from then on kept by overlap.

The lowest GUID among the managers changes on an ordinary failover (a dead manager vanishes from the list), so
that it names a fabric once and never again. A fabric is the same when a manager or its switches are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from llmgw.fabric.records import guid_text

SWITCHES_SHARED_MIN = 0.5
"""A map is of a known fabric when it shares this part of the smaller one's switches (one may have been moved)."""


class PhysicalFabric(msgspec.Struct, frozen=True):
    """A fabric that is known. `managers` and `switches` are GUIDs, as last seen or remembered."""

    id: str
    managers: frozenset[int] = frozenset()
    switches: frozenset[int] = frozenset()


class Observation(msgspec.Struct, frozen=True):
    """What one port saw: the operator's name of its fabric, the managers listed together, a map's switches.

    Both sets empty: nothing answered, which says nothing about the fabric (a failover takes most of a minute).
    """

    name: str
    managers: frozenset[int] = frozenset()
    switches: frozenset[int] = frozenset()


class Identities(msgspec.Struct, frozen=True):
    """`fabric_of_name`: the ids each operator's name was seen on, none for one that nothing answered on.

    `problems` are sentences; placement then trusts the physical fabric, not the name.
    """

    known: list[PhysicalFabric]
    fabric_of_name: dict[str, list[str]]
    problems: list[str]


class _Group(msgspec.Struct):
    """Observations that share a manager or switches: one physical fabric."""

    names: list[str]
    managers: set[int]
    switches: set[int]


def settle_identities(known: Sequence[PhysicalFabric], seen: Iterable[Observation]) -> Identities:
    """Whose each observation is. Known fabrics that nothing was seen of are kept as they were.

    Switches decide before managers, since a manager's host can be cabled to another fabric. Of two parts that a
    known fabric fell into, the one with more of its switches and managers keeps the identity.
    """
    groups, silent = _grouped(seen)
    chosen = _matched(known, groups)
    fabrics = {fabric.id: fabric for fabric in known}
    fabric_of_name: dict[str, list[str]] = {name: [] for name in silent}
    taken = set(fabrics)
    seen_on: dict[int, str] = {}
    problems: list[str] = []
    for at, group in enumerate(groups):
        before = chosen.get(at)
        identity = before.id if before else _first_name(group, taken)
        taken.add(identity)
        seen_on.update(dict.fromkeys(group.managers, identity))
        merged = [fabric.id for fabric in known if before and fabric is not before and _overlap(fabric, group)]
        if merged:
            joined = ", ".join(sorted([identity, *merged]))
            problems.append(f"the fabrics {joined} are one now: a cable or a manager joins them")
        fabrics[identity] = _remembered(identity, before, group)
        for name in group.names:
            fabric_of_name.setdefault(name, []).append(identity)
    kept = [
        # A manager belongs to the fabric that it was last seen on.
        PhysicalFabric(
            fabric.id,
            frozenset(guid for guid in fabric.managers if seen_on.get(guid, fabric.id) == fabric.id),
            fabric.switches,
        )
        for fabric in fabrics.values()
    ]
    return Identities(kept, fabric_of_name, [*problems, *_name_problems(fabric_of_name)])


def _grouped(seen: Iterable[Observation]) -> tuple[list[_Group], set[str]]:
    groups: list[_Group] = []
    silent: set[str] = set()
    for one in seen:
        if not one.managers and not one.switches:
            silent.add(one.name)
            continue
        joined = _Group([one.name], set(one.managers), set(one.switches))
        apart = []
        for group in groups:
            if _same(joined, group):
                joined.names = [*group.names, *(name for name in joined.names if name not in group.names)]
                joined.managers |= group.managers
                joined.switches |= group.switches
            else:
                apart.append(group)
        groups = [*apart, joined]
    return groups, silent


def _same(one: _Group, other: _Group) -> bool:
    if one.switches and other.switches:
        return shares_switches(one.switches, other.switches)
    return bool(one.managers & other.managers)


def shares_switches(one: set[int] | frozenset[int], other: set[int] | frozenset[int]) -> bool:
    """Whether two maps, by their switches, are of one fabric."""
    return len(one & other) >= SWITCHES_SHARED_MIN * min(len(one), len(other))


def _overlap(fabric: PhysicalFabric, group: _Group) -> tuple[int, int] | None:
    """How much a known fabric and a group share, to compare; None when they are not the same."""
    switches, managers = len(fabric.switches & group.switches), len(fabric.managers & group.managers)
    if fabric.switches and group.switches:
        return (switches, managers) if shares_switches(fabric.switches, group.switches) else None
    return (switches, managers) if managers else None


def _matched(known: Sequence[PhysicalFabric], groups: Sequence[_Group]) -> dict[int, PhysicalFabric]:
    """Each group's known fabric, the largest overlap first; a known fabric goes to one group only."""
    scored = [
        (overlap, fabric, at)
        for at, group in enumerate(groups)
        for fabric in known
        if (overlap := _overlap(fabric, group)) is not None
    ]
    scored.sort(key=lambda one: (one[0], [-ord(char) for char in one[1].id]), reverse=True)
    chosen: dict[int, PhysicalFabric] = {}
    used: set[str] = set()
    for _, fabric, at in scored:
        if at not in chosen and fabric.id not in used:
            chosen[at] = fabric
            used.add(fabric.id)
    return chosen


def _first_name(group: _Group, taken: set[str]) -> str:
    """The lowest manager that names no other fabric yet; a fabric without one is named by its lowest switch."""
    for guid in (*sorted(group.managers), *sorted(group.switches)):
        name = guid_text(guid) or ""
        if name not in taken:
            return name
    # Every GUID of it names another fabric, which it once was part of.
    lowest = min(group.managers | group.switches)
    return next(name for at in range(2, len(taken) + 3) if (name := f"{guid_text(lowest)}-{at}") not in taken)


def _remembered(identity: str, before: PhysicalFabric | None, group: _Group) -> PhysicalFabric:
    """A manager that vanished is remembered: it may be the only one when it returns. Switches are the map's."""
    managers = group.managers | (before.managers if before else frozenset())
    switches = group.switches or (before.switches if before else frozenset())
    return PhysicalFabric(identity, frozenset(managers), frozenset(switches))


def _name_problems(fabric_of_name: dict[str, list[str]]) -> list[str]:
    problems = []
    names_of: dict[str, list[str]] = {}
    for name, identities in sorted(fabric_of_name.items()):
        if len(set(identities)) > 1:
            problems.append(
                f"the name {name} stands for {len(set(identities))} physical fabrics "
                f"({', '.join(sorted(identities))}); give each its own name in agent.yaml"
            )
        for identity in identities:
            names_of.setdefault(identity, []).append(name)
    problems += [
        f"the names {' and '.join(sorted(set(names)))} stand for one physical fabric ({identity}); use one name"
        for identity, names in sorted(names_of.items())
        if len(set(names)) > 1
    ]
    return problems
