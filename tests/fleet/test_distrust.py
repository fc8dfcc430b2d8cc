"""What failures say about nodes and about new forms of a profile."""

from __future__ import annotations

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.model import ReplicaState
from tests.fleet.test_reconcile import catalog, four_nodes
from tests.fleet.world import Machine, World


def small_models(count: int) -> Catalog:
    return Catalog(
        models=[
            CatalogModel(name=f"m{i}", profiles=[Profile(engine="sim", gpus_per_node=1, replicas=2)])
            for i in range(count)
        ]
    )


def test_a_node_on_which_three_profiles_failed_that_run_elsewhere_is_placed_on_last() -> None:
    world = World(small_models(3), [Machine("node01", []), Machine("node02", []), Machine("node03", [])])
    world.run(20)
    bad = world.machines["node01"]
    assert len({held.spec.model for held in bad.held.values()}) == 3
    for shard_id, held in list(bad.held.items()):
        if held.phase == "ready":
            world.crash_engine(bad, shard_id)
    world.run(3)
    node = world.fleet.nodes["node01"]
    assert "m0/default, m1/default, m2/default" in (node.suspect or "")
    world.run(30)
    assert not bad.held
    assert all(len(world.serving(f"m{i}")) == 2 for i in range(3))
    world.run(700)
    assert node.suspect is None


def test_two_profiles_or_failures_everywhere_make_no_suspect() -> None:
    world = World(small_models(2), [Machine("node01", []), Machine("node02", [])])
    world.run(20)
    bad = world.machines["node01"]
    for shard_id in list(bad.held):
        world.crash_engine(bad, shard_id)
    world.run(3)
    assert world.fleet.nodes["node01"].suspect is None


class Breaking(World):
    """A world in which a form of `small` always crashes while it starts."""

    bad_args = ("--broken",)

    def _joined(self, spec):  # type: ignore[no-untyped-def]
        if tuple(spec.args) == self.bad_args:
            for machine in self.machines.values():
                if spec.shard_id in machine.held:
                    self.crash_engine(machine, spec.shard_id)
            return False
        return super()._joined(spec)


def test_a_new_form_that_fails_and_fails_is_not_rolled_out_and_the_old_one_serves_on() -> None:
    world = Breaking(catalog(big=0, small=2), four_nodes())
    world.run(20)
    before = world.serving("small")
    world.catalog = catalog(big=0, small=2, args=["--broken"], max_failures=3)
    for _ in range(200):
        world.run(1)
        assert world.serving("small") == before
    stopped = [event for event in world.events if event.event == "rollout stopped"]
    assert len(stopped) == 1
    assert "failed 3 times" in stopped[0].reason
    started = [e for e in world.events if e.event == "starting" and e.model == "small"]
    assert len(started) == 2 + 3
    # Another form is tried again.
    world.catalog = catalog(big=0, small=2, args=["--good"])
    world.run(60)
    assert not set(before) & set(world.replicas("small", ReplicaState.READY))
    assert len(world.serving("small")) == 2


def test_a_form_that_is_applied_again_after_it_was_rolled_back_is_tried_again() -> None:
    world = Breaking(catalog(big=0, small=2), four_nodes())
    world.run(20)
    before = world.serving("small")
    broken = catalog(big=0, small=2, args=["--broken"], max_failures=3)
    world.apply(broken)
    world.run(200)
    world.apply(catalog(big=0, small=2))
    world.run(20)
    assert world.serving("small") == before
    world.bad_args = ()
    world.apply(broken)
    world.run(60)
    assert len([event for event in world.events if event.event == "rollout stopped"]) == 1
    assert not set(before) & set(world.replicas("small", ReplicaState.READY))
    assert len(world.serving("small")) == 2


class Refusing(World):
    """A world in which some nodes refuse to lead, as one whose ports are all taken does."""

    refusing = frozenset({"node01"})

    def _start(self, machine, spec):  # type: ignore[no-untyped-def]
        super()._start(machine, spec)
        if spec.rank == 0 and machine.node_id in self.refusing:
            self.change(machine, spec.shard_id, "failed", "1 free port is needed")


def test_a_replica_whose_leader_fails_on_a_node_is_led_by_another() -> None:
    big = Profile(engine="sim", nodes=2, gpus_per_node=4, tensor_parallel=8, replicas=1)
    only = Catalog(models=[CatalogModel(name="big", profiles=[big])])
    world = Refusing(only, [Machine("node01", ["ib-a"]), Machine("node02", ["ib-a"])])
    world.run(120)
    (serving,) = world.serving("big")
    assert world.fleet.replicas[serving].seats[0].node_id == "node02"


def test_a_replica_that_fails_on_a_node_is_tried_on_another() -> None:
    small = Catalog(
        models=[CatalogModel(name="m", profiles=[Profile(engine="sim", gpus_per_node=1, replicas=1)])]
    )
    world = Refusing(small, [Machine("node01", []), Machine("node02", [])])
    world.run(120)
    (serving,) = world.serving("m")
    assert world.fleet.replicas[serving].seats[0].node_id == "node02"


class Deaf(World):
    """A world in which one agent speaks, and does nothing that it is told."""

    def _start(self, machine, spec):  # type: ignore[no-untyped-def]
        if machine.node_id != "node01":
            super()._start(machine, spec)


def test_a_start_that_its_agent_does_not_report_is_given_up_and_placed_elsewhere() -> None:
    small = Catalog(
        models=[CatalogModel(name="m", profiles=[Profile(engine="sim", gpus_per_node=1, replicas=1)])]
    )
    world = Deaf(small, [Machine("node01", []), Machine("node02", [])])
    world.run(world.settings.commanded_timeout_s)
    assert world.replicas("m", ReplicaState.STARTING) == ["m-1"]
    world.run(10)
    (failed,) = [event for event in world.events if event.event == "failed"]
    assert failed.reason == "rank 0 on node01: its agent did not report it within 60 s"
    (serving,) = world.serving("m")
    assert world.fleet.replicas[serving].seats[0].node_id == "node02"
