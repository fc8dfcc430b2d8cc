"""A new map held against the last one and against what was accepted. Pure, and for a thread: it takes a while."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.fabric.changes import Cable, Cabling, Change, ChangeKind, compare

_GONE: frozenset[ChangeKind] = frozenset({"switch gone", "adapter gone", "cable gone"})


@dataclass(frozen=True, slots=True)
class Compared:
    """`kept` is what the next map is held against."""

    kept: Cabling
    changes: tuple[Change, ...] = ()
    differences: tuple[Change, ...] = ()


def compare_map(now: Cabling, before: Cabling | None, accepted: Cabling | None) -> Compared:
    """What changed since the last map (nothing, for the first one), and how it differs from what was accepted.

    What a map that is not whole lacks may still be there: it is neither gone nor forgotten.
    """
    return Compared(
        kept=now if now.whole or before is None else _with_what_it_lacks(now, before),
        changes=() if before is None else _differences(before, now),
        differences=() if accepted is None else _differences(accepted, now),
    )


def _differences(before: Cabling, now: Cabling) -> tuple[Change, ...]:
    return tuple(change for change in compare(before, now) if now.whole or change.kind not in _GONE)


def _with_what_it_lacks(now: Cabling, before: Cabling) -> Cabling:
    taken = {end for cable in now.cables for end in _ends(cable)}
    missing = [cable for cable in before.cables if taken.isdisjoint(_ends(cable))]
    return Cabling({**before.devices, **now.devices}, [*now.cables, *missing], whole=False)


def _ends(cable: Cable) -> tuple[tuple[str, int], tuple[str, int]]:
    return (cable.a, cable.a_port), (cable.b, cable.b_port)
