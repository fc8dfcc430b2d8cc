"""Shards get GPUs that are joined: pairs stay whole, a switch gives the lowest indexes, and so does ignorance."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmgw.config.catalog import Profile
from llmgw.fleet.gpu_choice import choose_gpus, nvlink_pairs
from llmgw.fleet.model import Fleet, Node, NodeState
from llmgw.fleet.placement import choose_seats
from llmgw.fleet.room import Room, Wanted
from llmgw.messages.agent import EngineOffer, Gpu, Inventory


def joined(count: int, groups: Iterable[Iterable[int]], path: str = "NV4", other: str = "SYS") -> list[Gpu]:
    """GPUs of which those of a group are joined to each other by `path`, and all others by `other`."""
    paths: dict[int, dict[int, str]] = {
        one: {two: other for two in range(count) if two != one} for one in range(count)
    }
    for group in groups:
        for one, two in combinations(group, 2):
            paths[one][two] = paths[two][one] = path
    return [Gpu(index=n, uuid=f"GPU-{n}", name="x", paths=paths[n]) for n in range(count)]


def chosen(gpus: list[Gpu], free: Iterable[int], count: int) -> list[int]:
    names = [f"GPU-{index}" for index in sorted(free)]
    return [int(uuid[4:]) for uuid in choose_gpus(gpus, names, count)]


PAIRS = joined(8, [(0, 1), (2, 3), (4, 5), (6, 7)])
SWITCH = joined(8, [range(8)], "NV18")
QUADS = joined(8, [(0, 2, 4, 6), (1, 3, 5, 7)])


def test_a_pair_is_taken_whole() -> None:
    assert chosen(PAIRS, range(8), 2) == [0, 1]
    assert chosen(PAIRS, range(1, 8), 2) == [2, 3]
    assert chosen(PAIRS, [1, 3, 4, 5], 2) == [4, 5]
    assert chosen(PAIRS, [1, 2, 3, 5, 6, 7], 4) == [2, 3, 6, 7]


def test_what_is_left_of_a_pair_goes_before_one_is_split() -> None:
    assert chosen(PAIRS, [0, 1, 2, 3, 5], 1) == [5]
    assert chosen(PAIRS, [0, 1, 2, 3, 5], 3) == [0, 1, 5]
    assert chosen(PAIRS, [0, 1, 2, 3], 1) == [0]
    assert chosen(PAIRS, [0, 1, 2, 3], 3) == [0, 1, 2]


def test_pairs_that_do_not_lie_side_by_side_are_put_so() -> None:
    assert chosen(joined(4, [(0, 2), (1, 3)]), range(4), 4) == [0, 2, 1, 3]
    assert chosen(joined(4, [(0, 2), (1, 3)]), [0, 1, 3], 2) == [1, 3]


def test_behind_one_switch_the_lowest_indexes_are_taken() -> None:
    assert chosen(SWITCH, range(8), 4) == [0, 1, 2, 3]
    assert chosen(SWITCH, [1, 4, 5, 7], 2) == [1, 4]


def test_a_quad_is_not_mixed_with_another() -> None:
    assert chosen(QUADS, range(8), 4) == [0, 2, 4, 6]
    assert chosen(QUADS, [0, 1, 2, 3, 5, 7], 4) == [1, 3, 5, 7]
    assert chosen(QUADS, [0, 1, 2, 3, 5, 7], 2) == [0, 2]


def test_without_nvlink_gpus_below_one_bridge_stay_together() -> None:
    # noonghunna/club-3090#46: GPU 0 is on the other socket.
    five = joined(5, [(1, 2), (3, 4)], "PHB", "NODE")
    paths = dict.fromkeys(range(1, 5), "SYS")
    five[0] = Gpu(index=0, uuid="GPU-0", name="x", paths=paths)
    five[1:] = [Gpu(index=g.index, uuid=g.uuid, name="x", paths={**(g.paths or {}), 0: "SYS"}) for g in five[1:]]
    assert chosen(five, range(5), 2) == [1, 2]
    assert chosen(five, range(5), 4) == [1, 2, 3, 4]
    assert chosen(five, range(5), 1) == [0]


def test_where_it_is_unknown_how_gpus_are_joined_the_lowest_indexes_are_taken() -> None:
    unknown = [Gpu(index=n, uuid=f"GPU-{n}", name="x") for n in range(4)]
    assert chosen(unknown, [1, 2, 3], 2) == [1, 2]


def test_more_links_are_better_than_fewer() -> None:
    mesh = joined(4, [(0, 1, 2, 3)], "NV1")
    for one, two in ((0, 3), (1, 2)):
        mesh[one].paths[two] = mesh[two].paths[one] = "NV2"  # type: ignore[index]
    assert chosen(mesh, range(4), 2) == [0, 3]


def test_placement_gives_a_shard_a_pair() -> None:
    inventory = Inventory(gpus=joined(4, [(0, 3), (1, 2)]), engines=[EngineOffer(name="sim")])
    node = Node(node_id="n1", state=NodeState.READY, session="s", inventory=inventory)
    fleet = Fleet(nodes={"n1": node})
    profile = Profile.model_validate({"name": "p", "engine": "sim", "gpus_per_node": 2})
    room = Room.of(fleet)
    seats = []
    for _ in range(2):
        found = choose_seats(fleet, Wanted("m", profile), room)
        assert found is not None
        room.take(fleet, "m", 1, found.seats)
        seats.append(found.seats[0].gpus)
    assert seats == [("GPU-0", "GPU-3"), ("GPU-1", "GPU-2")]


@st.composite
def nodes(draw: Any) -> tuple[list[Gpu], list[int], int]:
    """A node of pairs, single GPUs and larger groups in any order, those that are free, how many are wanted."""
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 2, 2, 3, 4]), min_size=1, max_size=5))
    total = sum(sizes)
    order = draw(st.permutations(range(total)))
    groups, at = [], 0
    for size in sizes:
        groups.append(order[at : at + size])
        at += size
    gpus = joined(
        total, groups, draw(st.sampled_from(["NV1", "NV4", "NV18"])), draw(st.sampled_from(["SYS", "PHB"]))
    )
    free = sorted(draw(st.sets(st.integers(0, total - 1), min_size=1)))
    return gpus, free, draw(st.integers(1, len(free)))


def split_pairs(gpus: list[Gpu], free: Iterable[int], taken: Iterable[int]) -> int:
    """Pairs, free on both ends, of which just one end is taken."""
    there, got = set(free), set(taken)
    return sum(len({one, other} & got) == 1 for one, other in nvlink_pairs(gpus) if {one, other} <= there)


@given(nodes())
def test_a_pair_is_split_only_when_no_choice_without_splitting_exists(
    node: tuple[list[Gpu], list[int], int],
) -> None:
    gpus, free, count = node
    taken = chosen(gpus, free, count)
    assert len(set(taken)) == count
    assert set(taken) <= set(free)
    least = min(split_pairs(gpus, free, other) for other in combinations(free, count))
    assert split_pairs(gpus, free, taken) == least


@given(nodes())
def test_the_same_question_has_the_same_answer_and_no_worse_one_than_the_lowest_indexes(
    node: tuple[list[Gpu], list[int], int],
) -> None:
    gpus, free, count = node
    taken = chosen(gpus, free, count)
    assert taken == chosen(list(reversed(gpus)), free, count)
    links = {(gpu.index, peer) for gpu in gpus for peer in gpu.nvlink_peers or []}
    if split_pairs(gpus, free, taken) == split_pairs(gpus, free, free[:count]):
        inside = sum((one, two) in links for one, two in combinations(taken, 2))
        assert inside >= sum((one, two) in links for one, two in combinations(free[:count], 2))
