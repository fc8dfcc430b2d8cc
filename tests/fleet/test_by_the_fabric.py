"""Placement reads the fabric: one leaf, then the fewest, then the fewest tiers; never two physical fabrics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmgw.config.catalog import Profile
from llmgw.fleet.fabric_facts import FabricFacts, Place
from llmgw.fleet.leaves import spread_of
from llmgw.fleet.model import Fleet, Node, NodeState, Seat
from llmgw.fleet.placement import Verdict, choose_seats, never, place
from llmgw.fleet.room import Room, Wanted
from llmgw.messages.agent import EngineOffer, FabricOffer, Gpu, Inventory


def node(node_id: str, *fabrics: str, gpus: int = 8, suspect: str | None = None) -> Node:
    return Node(
        node_id,
        state=NodeState.READY,
        session="s",
        suspect=suspect,
        inventory=Inventory(
            gpus=[Gpu(index=index, uuid=f"{node_id}-{index}", name="x") for index in range(gpus)],
            fabrics=[FabricOffer(name=name, adapters=["mlx5_0:1"], usable=True) for name in fabrics or ["ib-a"]],
            engines=[EngineOffer(name="sim")],
        ),
    )


def fleet_of(
    places: dict[str, Place], distances: dict[tuple[str, str], int] | None = None, name: str = "ib-a"
) -> Fleet:
    """Nodes on one fabric, each at its place."""
    return Fleet(
        nodes={node_id: node(node_id, name) for node_id in places},
        fabric_facts=FabricFacts(
            {(node_id, name): place for node_id, place in places.items()},
            distances or {},
            {leaf: leaf.replace("l", "leaf0") for place in places.values() for leaf in place.leaves},
        ),
    )


def gang(nodes: int, **more: object) -> Wanted:
    return Wanted("big", Profile(engine="sim", nodes=nodes, gpus_per_node=8, **more))


def chosen(fleet: Fleet, nodes: int = 2, **more: object) -> list[str]:
    found = choose_seats(fleet, gang(nodes, **more), Room.of(fleet))
    return [] if found is None else [seat.node_id for seat in found.seats]


def explained(fleet: Fleet, nodes: int = 2) -> Verdict:
    return place(fleet, gang(nodes), Room.of(fleet))


def at(
    *leaves: str, physical: str | None = "f1", aligned: bool | None = None, doubts: Sequence[str] = ()
) -> Place:
    return Place(physical, leaves, aligned, tuple(doubts))


def test_nodes_of_one_leaf_are_taken_together_although_others_come_first_by_name() -> None:
    fleet = fleet_of({"n1": at("l1"), "n2": at("l2"), "n3": at("l3"), "n4": at("l3")})
    assert chosen(fleet) == ["n3", "n4"]


def test_the_leaf_that_is_just_large_enough_is_taken_and_larger_ones_are_left_whole() -> None:
    fleet = fleet_of({"n1": at("l1"), "n2": at("l1"), "n3": at("l1"), "n4": at("l2"), "n5": at("l2")})
    assert chosen(fleet) == ["n4", "n5"]
    assert chosen(fleet, 3) == ["n1", "n2", "n3"]


def test_where_no_leaf_is_enough_the_fewest_leaves_are_taken() -> None:
    fleet = fleet_of(
        {
            **{f"a{i}": at(f"l{i}") for i in range(4)},
            **{f"b{i}": at("l7") for i in range(2)},
            **{f"c{i}": at("l8") for i in range(2)},
        }
    )
    assert sorted(chosen(fleet, 4)) == ["b0", "b1", "c0", "c1"]


def test_of_as_many_leaves_those_are_taken_between_which_the_fewest_tiers_are_crossed() -> None:
    places = {f"n{i}": at(f"l{i}") for i in range(1, 5)}
    far = dict.fromkeys(combinations(["l1", "l2", "l3", "l4"], 2), 2)
    assert chosen(fleet_of(places, far)) == ["n1", "n2"]
    assert chosen(fleet_of(places, {**far, ("l2", "l4"): 1})) == ["n2", "n4"]
    joined = {("l3", "l4"): 2}
    assert chosen(fleet_of(places, joined)) == ["n3", "n4"], "the others are not known to be joined"


def test_on_rails_nodes_of_one_unit_have_their_leaves_in_common_and_are_taken_together() -> None:
    first, second = ("l1", "l2"), ("l3", "l4")
    fleet = fleet_of(
        {
            "n1": at(*first),
            "n2": at(*second),
            "n3": at(*reversed(first)),
            "n4": at(*first),
            "n5": at(*reversed(second)),
        }
    )
    # n3 hangs on the leaves of n1, and its first adapter on that of n1's second: they would cross a spine.
    assert chosen(fleet) == ["n1", "n4"]


def test_rail_aligned_nodes_come_before_others_of_the_same_leaf() -> None:
    fleet = fleet_of({"n1": at("l1", aligned=False), "n2": at("l1", aligned=True), "n3": at("l1", aligned=True)})
    assert chosen(fleet) == ["n2", "n3"]


def test_a_doubtful_node_comes_after_the_far_ones_but_is_taken_when_it_must_be() -> None:
    slow = "cable leaf01 port 3 runs at 4xDDR"
    fleet = fleet_of({"n1": at("l1"), "n2": at("l1", doubts=[slow]), "n3": at("l2")})
    assert chosen(fleet) == ["n1", "n3"]
    assert sorted(chosen(fleet, 3)) == ["n1", "n2", "n3"]
    assert explained(fleet).last == {"n2": f"comes last: {slow}"}


def test_a_suspect_node_comes_after_a_doubtful_one() -> None:
    fleet = fleet_of({"n1": at("l1"), "n2": at("l1"), "n3": at("l1", doubts=["errors grow"])})
    fleet.nodes["n2"].suspect = "three profiles failed here"
    assert chosen(fleet) == ["n1", "n3"]
    assert "it is suspect: three profiles failed here" in explained(fleet).last["n2"]


def test_a_node_whose_leaf_is_unknown_counts_as_alone() -> None:
    fleet = fleet_of({"n1": at(), "n2": at(), "n3": at("l1"), "n4": at("l1")})
    assert chosen(fleet) == ["n3", "n4"]


def test_a_fabric_that_nobody_has_mapped_is_compared_as_if_there_were_no_map() -> None:
    fleet = fleet_of({"n3": at("l1"), "n4": at("l1")}, name="ib-b")
    fleet.nodes |= {"n1": node("n1", "ib-a"), "n2": node("n2", "ib-a")}
    assert chosen(fleet) == ["n1", "n2"]


def test_two_physical_fabrics_of_one_name_are_never_mixed_in_one_replica() -> None:
    fleet = fleet_of(
        {"n1": at(physical="f1"), "n2": at(physical="f2"), "n3": at(physical="f2"), "n4": at(physical=None)}
    )
    assert chosen(fleet) == ["n2", "n3"]
    assert chosen(fleet, fabric="ib-a") == ["n2", "n3"]
    assert chosen(fleet, 3) == []
    verdict = explained(fleet, 3)
    assert "1 on ib-a (the physical fabric f1), 2 on ib-a (the physical fabric f2)" in verdict.reason
    assert verdict.refused == {"is on an unknown one of several fabrics of one name": ["n4"]}
    assert "llmgw ctl fabrics" in verdict.details["n4"]
    assert never(fleet, gang(3)) is None, "where n4 is may still be told"
    del fleet.nodes["n4"]
    assert never(fleet, gang(3)) is not None


def test_a_node_of_which_nothing_is_known_joins_the_only_physical_fabric_of_its_name() -> None:
    assert chosen(fleet_of({"n1": at(physical="f1"), "n2": at(physical=None)})) == ["n1", "n2"]


def test_two_names_over_one_physical_fabric_stay_two_fabrics() -> None:
    fleet = fleet_of({"n1": at("l1")})
    fleet.nodes["n2"] = node("n2", "ib-b")
    fleet.fabric_facts = FabricFacts({**fleet.fabric_facts.places, ("n2", "ib-b"): at("l1")})
    assert chosen(fleet) == []


def test_explain_says_how_the_nodes_sit_and_what_decided() -> None:
    fleet = fleet_of(
        {
            "n1": at("l1", aligned=True),
            "n2": at("l2", aligned=True),
            "n3": at("l3", aligned=True),
            "n4": at("l3", aligned=True),
        },
        {("l1", "l2"): 1, ("l1", "l3"): 1, ("l2", "l3"): 1},
    )
    first, *others = explained(fleet).decided
    assert first == "n3 and n4 on ib-a: one leaf (leaf03), rails aligned"
    assert others == ["rather than n1 and n2 on ib-a: 1 against 2 leaves"]
    assert explained(fleet, 3).decided[0] == (
        "n1, n3 and n4 on ib-a: 2 leaves (leaf01, leaf03), 1 tier crossed, rails aligned"
    )


def test_a_replica_of_one_node_is_placed_as_without_any_facts() -> None:
    fleet = fleet_of({"n1": at("l1", doubts=["errors grow"]), "n2": at("l2")})
    wanted = Wanted("small", Profile(engine="sim"))
    found = place(fleet, wanted, Room.of(fleet))
    assert [seat.node_id for seat in found.seats or ()] == ["n1"]
    assert (found.decided, found.last) == ([], {})


# Properties.

leaf = st.sampled_from(["l1", "l2", "l3", "l4"])
apart = st.one_of(st.just(()), st.tuples(leaf))
railed = st.one_of(st.just(()), st.tuples(leaf, leaf))
LEAVES = ["l1", "l2", "l3", "l4"]


def places_of(leaves: st.SearchStrategy[tuple[str, ...]]) -> st.SearchStrategy[list[Place]]:
    doubts = st.sampled_from([(), (), ("errors grow",)])
    physical = st.sampled_from(["f1", "f1", "f2", None])
    return st.lists(st.builds(Place, physical, leaves, st.sampled_from([None, True, False]), doubts), max_size=9)


distances = st.dictionaries(st.sampled_from(list(combinations(LEAVES, 2))), st.integers(1, 3))


def believed(fleet: Fleet, node_ids: Sequence[str]) -> tuple[int, int]:
    places = [fleet.fabric_facts.place(node_id, "ib-a") for node_id in node_ids]
    return sum(fleet.nodes[n].suspect is not None for n in node_ids), sum(bool(p.doubts) for p in places)


@settings(max_examples=300, deadline=None)
@given(places_of(st.one_of(apart, railed)), distances, st.sets(st.integers(0, 8)), st.integers(2, 4))
def test_what_is_chosen_is_on_one_network_believed_as_much_as_can_be_and_on_one_leaf_when_one_is_enough(
    places: list[Place], known: dict[tuple[str, str], int], suspects: set[int], size: int
) -> None:
    fleet = fleet_of({f"n{i}": place for i, place in enumerate(places)}, known)
    for i in suspects:
        if f"n{i}" in fleet.nodes:
            fleet.nodes[f"n{i}"].suspect = "it fails"
    facts = fleet.fabric_facts
    found = chosen(fleet, size)
    assert found == chosen(Fleet(nodes=dict(reversed(fleet.nodes.items())), fabric_facts=facts), size), "the same"
    fit = [c for c in combinations(fleet.nodes, size) if len({facts.network(n, "ib-a") for n in c} - {None}) == 1]
    fit = [c for c in fit if all(facts.network(n, "ib-a") for n in c)]
    assert bool(found) == bool(fit)
    if not found:
        return
    assert len({facts.place(n, "ib-a").physical for n in found} - {None}) <= 1
    assert len(set(found)) == size
    best = min(believed(fleet, c) for c in fit)
    assert believed(fleet, found) == best
    as_good = [c for c in fit if believed(fleet, c) == best]

    def on_one_leaf(nodes: Sequence[str]) -> bool:
        return len({facts.place(n, "ib-a").leaves for n in nodes}) == 1 and bool(
            facts.place(nodes[0], "ib-a").leaves
        )

    if any(on_one_leaf(c) for c in as_good):
        mapped = {facts.network(n, "ib-a") for n in fleet.nodes if facts.place(n, "ib-a").leaves}
        if facts.network(found[0], "ib-a") in mapped:  # one that nobody has mapped counts as a leaf
            assert spread_of([facts.place(n, "ib-a").leaves for n in found], facts).leaves == 1.0


@settings(max_examples=300, deadline=None)
@given(st.lists(apart, min_size=2, max_size=10), distances, st.integers(2, 5))
def test_where_leaves_are_not_shared_the_number_of_leaves_is_the_smallest_possible(
    leaves: list[tuple[str, ...]], known: dict[tuple[str, str], int], size: int
) -> None:
    fleet = fleet_of({f"n{i}": at(*each) for i, each in enumerate(leaves)}, known)
    facts = fleet.fabric_facts
    found = chosen(fleet, size)
    if len(leaves) < size:
        assert found == []
    elif any(leaves):

        def spread(nodes: Sequence[str]) -> float:
            return spread_of([facts.place(n, "ib-a").leaves for n in nodes], facts).leaves

        assert spread(found) == min(map(spread, combinations(fleet.nodes, size)))


@settings(max_examples=100, deadline=None)
@given(places_of(railed), distances, st.lists(st.integers(2, 3), min_size=1, max_size=8))
@example(
    # The only node whose leaf is known is full when the third is placed.
    places=[
        *(Place(physical, doubts=("errors grow",)) for physical in ("f1", "f1", "f2")),
        Place("f2", aligned=False, doubts=("errors grow",)),
        Place("f1", ("l1", "l1")),
    ],
    known={},
    sizes=[2, 2, 2],
)
def test_each_replica_of_a_plan_goes_where_it_would_go_were_it_the_first(
    places: list[Place], known: dict[tuple[str, str], int], sizes: list[int]
) -> None:
    fleet = fleet_of({f"n{i}": place for i, place in enumerate(places)}, known)
    room = Room.of(fleet)
    taken: dict[str, set[str]] = {}
    for size in sizes:
        wanted = Wanted("big", Profile(name=f"of-{size}", engine="sim", nodes=size, gpus_per_node=4))
        fresh = Room(
            used={name: set(gpus) for name, gpus in taken.items()},
            replicas_of=dict(room.replicas_of),
            singles_on_fabric={},
            facts=fleet.fabric_facts,
        )
        found = choose_seats(fleet, wanted, room)
        assert found == choose_seats(fleet, wanted, fresh)
        if found is None:
            continue
        room.take(fleet, "big", size, found.seats)
        for seat in found.seats:
            taken.setdefault(seat.node_id, set()).update(seat.gpus)


@pytest.mark.parametrize("nodes", [["n1", "n2"], ["n2", "n1"]])
def test_the_order_of_ranks_keeps_the_nodes_of_a_leaf_together(nodes: list[str]) -> None:
    fleet = fleet_of({"n1": at("l1"), "n2": at("l2"), "n3": at("l1"), "n4": at("l2")}, {("l1", "l2"): 1})
    room = Room.of(fleet)
    room.take(fleet, "other", 2, [Seat(name, ()) for name in nodes])
    assert chosen(fleet, 4) == ["n1", "n3", "n2", "n4"]


def decided(fleet: Fleet, room: Room | None = None) -> str:
    """What spoke for the choice rather than for the next one."""
    found = place(fleet, Wanted("big", Profile(engine="sim", nodes=2)), room or Room.of(fleet)).decided
    return found[1].partition(": ")[2]


def two_leaves(*second: Place) -> Fleet:
    """Two leaves with two nodes each."""
    first, more = [at("l1"), at("l1")], second or (at("l2"), at("l2"))
    return fleet_of({f"n{i}": each for i, each in enumerate([*first, *more], 1)}, {("l1", "l2"): 1})


def test_every_thing_that_may_decide_is_named() -> None:
    assert decided(two_leaves()) == "alike; the smaller leaf is taken, else the first by name"
    room = Room.of(fleet := two_leaves())
    room.take(fleet, "big", 2, [Seat("n1", ())])
    assert decided(fleet, room) == "1 shards of the model are on those nodes, 0 on these"
    room = Room.of(fleet := two_leaves())
    room.take(fleet, "other", 1, [Seat("n4", ("n4-0",))])
    assert decided(fleet, room) == "the tighter fit: these have 15 free GPUs, those 16"
    aligned = at("l2", aligned=True), at("l2", aligned=False)
    assert decided(two_leaves(*aligned)) == "1 node is not on the rails there, none here"
    # An unmapped fabric beside one with doubts, then with two leaves, then with a suspect.
    fleet = Fleet(
        nodes={name: node(name, "ib-b" if name[0] == "m" else "ib-a") for name in ("m1", "m2", "n1", "n2")}
    )
    doubted = {("m1", "ib-b"): at("k1", doubts=["slow"]), ("m2", "ib-b"): at("k1")}
    fleet.fabric_facts = FabricFacts(doubted)
    assert decided(fleet) == "1 node is doubtful there, none here"
    fleet.fabric_facts = FabricFacts({**doubted, ("m1", "ib-b"): at("k2")})
    assert decided(fleet) == "1 against 2 leaves"
    fleet.nodes["m1"].suspect = "it fails"
    assert decided(fleet) == "1 node is suspect there, none here"
