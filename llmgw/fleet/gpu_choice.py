"""Which of a node's free GPUs a shard gets: those that are joined to each other, and in an order that keeps
joined ones side by side. Pure.

A pair joined by a bridge is split only when there is no other way. Where all GPUs are joined alike (by NVSwitch,
or by nothing), and where it is not known how they are joined, the lowest indexes are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from llmgw.messages.agent import Gpu

# What a path is worth to two GPUs of one shard: a single NVLink more than any way over PCI.
_NVLINK_WORTH = 100
_WORTH = {"PIX": 5, "PSB": 5, "PXB": 4, "PHB": 3, "NODE": 1}

_Unit = tuple[int, ...]
_Worth = dict[tuple[int, int], int]


def choose_gpus(gpus: Sequence[Gpu], free: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` of the `free` GPUs (UUIDs, lowest index first) of a node that has `gpus`.

    The order is that of ranks: neighbours in it are joined as well as can be. The caller has seen that there are
    enough.
    """
    offered = set(free)
    names = {gpu.index: gpu.uuid for gpu in gpus if gpu.uuid in offered}
    worth = _worth(gpu for gpu in gpus if gpu.index in names)
    if count < 1 or len(set(worth.values())) < 2:
        return tuple(free[:count])
    pairs = [pair for pair in nvlink_pairs(gpus) if pair[0] in names and pair[1] in names]
    return tuple(names[index] for index in _in_order(_take(sorted(names), pairs, worth, count), worth))


def nvlink_pairs(gpus: Iterable[Gpu]) -> list[tuple[int, int]]:
    """The GPUs, by index, that are joined by NVLinks to one other and to nobody else, as with a bridge."""
    peers: dict[int, set[int]] = {}
    for gpu in gpus:
        for other in gpu.nvlink_peers or ():
            # One end that says it is enough: the other's row may be unread.
            peers.setdefault(gpu.index, set()).add(other)
            peers.setdefault(other, set()).add(gpu.index)
    return sorted(
        (one, other)
        for one, theirs in peers.items()
        for other in theirs
        if one < other and len(theirs) == 1 and len(peers[other]) == 1
    )


def _worth(gpus: Iterable[Gpu]) -> _Worth:
    """Every two of the GPUs, the lower index first → what their path is worth; 0 when it is unknown."""
    listed = sorted(gpus, key=lambda gpu: gpu.index)
    return {
        (one.index, other.index): max(
            _path_worth((one.paths or {}).get(other.index, "")),
            _path_worth((other.paths or {}).get(one.index, "")),
        )
        for one, other in combinations(listed, 2)
    }


def _path_worth(path: str) -> int:
    if path.startswith("NV") and path[2:].isdecimal():
        return _NVLINK_WORTH * int(path[2:])
    return _WORTH.get(path, 0)


def _of(worth: _Worth, one: int, other: int) -> int:
    return worth[(one, other) if one < other else (other, one)] if one != other else 0


def _take(free: list[int], pairs: list[tuple[int, int]], worth: _Worth, count: int) -> list[int]:
    """`count` GPUs: grown from each start, the best result taken. Pairs are taken whole as long as that works."""
    paired = {index for pair in pairs for index in pair}
    units: list[_Unit] = sorted([*pairs, *((index,) for index in free if index not in paired)])
    if len(paired) == len(free) and count % 2:
        # Nothing but pairs, and an odd number is wanted: one is split, whichever costs least.
        whole = _take(free, pairs, worth, count - 1) if count > 1 else []
        left = [index for index in free if index not in whole]
        return [*whole, min(left, key=lambda index: (-sum(_of(worth, index, other) for other in whole), index))]
    results = [_grow(units, start, worth, count) for start in range(len(units))]
    return min(
        (chosen for chosen in results if chosen is not None), key=lambda chosen: _cost(chosen, free, worth)
    )


def _grow(units: list[_Unit], start: int, worth: _Worth, count: int) -> list[int] | None:
    """Units from one on, each time the one that is worth most to what is there; None when the start fits not."""
    left = list(units)
    gain = dict.fromkeys(left, 0)
    chosen: list[int] = []
    unit = left[start]
    while True:
        left.remove(unit)
        if not _fits(left, count - len(chosen) - len(unit)):
            if not chosen:
                return None
        else:
            chosen += unit
            if len(chosen) == count:
                return sorted(chosen)
            for other in left:
                gain[other] += sum(_of(worth, one, two) for one in unit for two in other)
        unit = max(left, key=lambda unit: ((gain[unit] + _inside(unit, worth)) / len(unit), -unit[0]))


def _fits(units: list[_Unit], count: int) -> bool:
    """True when whole units can make up exactly so many GPUs."""
    singles = sum(len(unit) == 1 for unit in units)
    total = sum(map(len, units))
    return 0 <= count <= total and (count % 2 == 0 or singles > 0)


def _inside(gpus: Iterable[int], worth: _Worth) -> int:
    return sum(_of(worth, one, other) for one, other in combinations(gpus, 2))


def _cost(chosen: list[int], free: list[int], worth: _Worth) -> tuple[int, int, list[int]]:
    """The best joined first, then what tears least out of what is left, then the lowest indexes."""
    torn = sum(_of(worth, one, other) for one in chosen for other in free if other not in chosen)
    return -_inside(chosen, worth), torn, chosen


def _in_order(chosen: list[int], worth: _Worth) -> list[int]:
    """From the lowest index on, each time to the GPU that is joined best to the last."""
    left = sorted(chosen)
    order = [left.pop(0)]
    while left:
        last = order[-1]
        order.append(min(left, key=lambda index: (-_of(worth, last, index), index)))
        left.remove(order[-1])
    return order
