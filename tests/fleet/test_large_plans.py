"""Plans of many replicas: placed one after the other as if each were the only one, in answers of bounded size."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.actions import StartReplica
from llmgw.fleet.carry_out import Effects
from llmgw.fleet.events import Event
from llmgw.fleet.filters import refusal
from llmgw.fleet.lives import Life
from llmgw.fleet.model import Backoff, Fleet, Node, NodeState
from llmgw.fleet.observe import Enrolment
from llmgw.fleet.placement import choose_seats
from llmgw.fleet.reconcile import STARTS_MAX
from llmgw.fleet.room import Room, Wanted
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import EngineOffer, FabricOffer, Gpu, Inventory, Register
from llmgw.server.hub import Hub
from llmgw.server.ids import RandomIds
from llmgw.server.seams import Clock
from llmgw.server.turns import ACTIONS_AT_ONCE
from tests.bench.fleets import LargeFleet, inventory


def random_fleet(rng: random.Random) -> Fleet:
    """Nodes of all kinds: on none, one or several fabrics, suspect, cordoned, with broken GPUs and failures."""
    fleet = Fleet()
    for number in range(rng.randint(1, 20)):
        fabrics = [name for name in ("ib-a", "ib-b", "ib-c") if rng.random() < 0.45]
        fleet.nodes[f"n{number:02d}"] = Node(
            f"n{number:02d}",
            state=NodeState.READY,
            session="s",
            suspect="it fails" if rng.random() < 0.1 else None,
            cordoned=rng.random() < 0.05,
            failures=[(1.0, ("m1", "p"))] * rng.choice([0, 0, 0, 1, 2]),
            inventory=Inventory(
                gpus=[
                    Gpu(index=index, uuid=f"{number}-{index}", name="x", usable=rng.random() < 0.95)
                    for index in range(rng.choice([2, 4, 8]))
                ],
                fabrics=[FabricOffer(name=name, adapters=[], usable=rng.random() < 0.9) for name in fabrics],
                engines=[EngineOffer(name="sim")],
            ),
        )
    fleet.backoff["m1", "p"] = Backoff(failures=2)
    return fleet


def singles(replicas: int) -> Catalog:
    """One model whose replicas take a GPU each."""
    return Catalog(models=[CatalogModel(name="m", profiles=[Profile(engine="sim", replicas=replicas)])])


def by_scoring_every_node(fleet: Fleet, wanted: Wanted, room: Room) -> tuple[list[str], str | None] | None:
    """The choice as it is meant, without anything that makes it fast."""
    able = [node for node in fleet.nodes.values() if refusal(node, wanted, room) is None]

    def there(node: Node) -> int:
        return room.replicas_of.get((wanted.model, node.node_id), 0)

    def alike(node: Node) -> tuple[bool, int, int]:
        return node.suspect is not None, room.failures(node, wanted), there(node)

    if wanted.profile.nodes == 1:

        def score(node: Node) -> tuple[object, ...]:
            singles = max([room.singles_on_fabric.get(name, 0) for name in room.fabrics(node)], default=0)
            return *alike(node), bool(room.fabrics(node)), -singles, len(room.free(node)), node.node_id

        return ([min(able, key=score).node_id], wanted.profile.fabric) if able else None
    found = []
    for name in {name for node in able for name in room.fabrics(node)}:
        on_it = [node for node in able if name in room.fabrics(node) and wanted.profile.fabric in (None, name)]
        first = sorted(on_it, key=lambda node: (*alike(node), len(room.free(node)), node.node_id))
        first = first[: wanted.profile.nodes]
        if len(first) == wanted.profile.nodes:
            key = (
                sum(node.suspect is not None for node in first),
                sum(room.failures(node, wanted) for node in first),
                sum(there(node) for node in on_it),
                sum(len(room.free(node)) for node in first),
                name,
            )
            found.append((key, [node.node_id for node in first], name))
    return min(found)[1:] if found else None


@pytest.mark.parametrize("seed", range(25))
def test_each_replica_of_a_plan_goes_where_scoring_every_node_would_put_it(seed: int) -> None:
    rng = random.Random(seed)
    fleet = random_fleet(rng)
    room = Room.of(fleet)
    questions = [
        Wanted(
            f"m{number % 4}",
            Profile(
                name="p" if number < 4 else "q",
                engine="sim",
                nodes=rng.choice([1, 1, 2, 3]),
                gpus_per_node=rng.choice([1, 2, 4]),
                fabric=rng.choice([None, None, None, "ib-a"]),
            ),
        )
        for number in range(6)
    ]
    for _ in range(60):
        wanted = rng.choice(questions)
        chosen = choose_seats(fleet, wanted, room)
        plain = None if chosen is None else ([seat.node_id for seat in chosen.seats], chosen.fabric)
        assert plain == by_scoring_every_node(fleet, wanted, room)
        if chosen is not None:
            room.take(fleet, wanted.model, wanted.profile.nodes, chosen.seats)


def test_one_answer_starts_a_bounded_number_and_the_next_ones_the_rest() -> None:
    large = LargeFleet(singles(450), 60)
    large.register_all()
    assert sum(isinstance(action, StartReplica) for action in large.plan()) == STARTS_MAX
    large.until_quiet()
    assert sum(replica.state == "ready" for replica in large.fleet.replicas.values()) == 450
    seats = [seat for replica in large.fleet.replicas.values() for seat in replica.seats.values()]
    assert len({(seat.node_id, gpu) for seat in seats for gpu in seat.gpus}) == 450


class Counting(Hub):
    """A hub that says how much it carried out in one go."""

    carried_out = 0

    def _deliver(self, effects: Effects) -> None:
        self.carried_out += len(effects.starts)
        super()._deliver(effects)


class NoMemory:
    def record(self, events: Iterable[Event], at: float) -> None: ...

    def node_registered(self, node: Node, life: Life, at: float) -> None: ...

    def fabrics_changed(self, node: Node, at: float) -> None: ...

    async def stored(self, timeout_s: float) -> bool:
        return True


def test_a_turn_that_takes_long_ends_and_asks_for_another_until_all_is_done() -> None:
    now = 1000.0

    def slow_clock() -> float:
        nonlocal now
        now += 0.06
        return now

    hub = Counting(
        epoch="1",
        catalog=singles(450),
        # Only how long a turn takes is looked at here: all that reads this clock makes it later.
        settings=FleetSettings(lost_after_s=1e6),
        clock=Clock(monotonic=slow_clock, wall=lambda: 0.0),
        ids=RandomIds(),
        memory=NoMemory(),
        publish=lambda table: None,
    )
    for number in range(60):
        node_id = f"node{number:02d}"
        message = Register(
            node_id=node_id,
            boot_id="b",
            instance="i",
            instance_started_at=1.0,
            counter=1,
            version="1",
            inventory=inventory(node_id, "ib-a"),
        )
        hub.register(message, Enrolment("10.0.0.1"), "1")
    turns = []
    while hub.changed.is_set():
        hub.changed.clear()
        before = hub.carried_out
        hub.turn()
        turns.append(hub.carried_out - before)
    assert sum(turns) == 450
    assert max(turns) <= 2 * ACTIONS_AT_ONCE
    assert len(turns) > 2
