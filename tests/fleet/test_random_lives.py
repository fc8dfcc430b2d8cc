"""Random lives of a fleet: after every second the invariants hold, and afterwards it comes to rest."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.fleet.settings import FleetSettings
from tests.fleet.test_reconcile import catalog, four_nodes
from tests.fleet.world import World

NODES = ["node01", "node02", "node03", "node04"]
node = st.sampled_from(NODES)
step = st.one_of(
    st.tuples(st.just("kill"), node),
    st.tuples(st.just("boot"), node),
    st.tuples(st.just("cut"), node),
    st.tuples(st.just("heal"), node),
    st.tuples(st.just("drain"), node),
    st.tuples(st.just("undrain"), node),
    st.tuples(st.just("crash"), node),
    st.tuples(st.just("restart agent"), node),
    st.tuples(st.just("restart server"), st.none()),
    st.tuples(st.just("scale"), st.integers(0, 5)),
    st.tuples(st.just("change"), st.integers(0, 3)),
)


def apply(world: World, what: str, arg: object) -> None:
    if what == "restart server":
        world.start_server()
    elif what == "scale":
        world.catalog = catalog(small=int(str(arg)))
    elif what == "change":
        world.catalog = catalog(args=[f"--form={arg}"])
    else:
        machine = world.machines[str(arg)]
        believed = world.fleet.nodes.get(machine.node_id)
        if what == "kill" and machine.alive:
            world.kill(machine.node_id)
        elif what == "boot" and not machine.alive:
            world.boot(machine.node_id)
        elif what == "cut":
            machine.connected = False
        elif what == "heal":
            machine.connected = True
        elif what == "restart agent":
            machine.session = None
        elif what in ("drain", "undrain") and believed is not None:
            believed.draining = what == "drain"
        elif what == "crash" and machine.alive and machine.held:
            shard_id = min(machine.held)
            if machine.held[shard_id].phase in ("starting", "ready"):
                world.crash_engine(machine, shard_id)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(step, st.integers(0, 25)), max_size=25))
def test_the_invariants_hold_in_random_lives_and_the_fleet_comes_to_rest(
    steps: list[tuple[tuple[str, object], int]],
) -> None:
    world = World(
        catalog(), four_nodes(), FleetSettings(settle_s=5.0, unreachable_limit_s=40.0, backoff_max_s=40.0)
    )
    for (what, arg), seconds in steps:
        apply(world, what, arg)
        world.run(seconds)
    for machine in world.machines.values():
        machine.connected = True
        if not machine.alive:
            world.boot(machine.node_id)
    world.catalog = catalog()
    for believed in world.fleet.nodes.values():
        believed.draining = False
    world.run(300, step_s=1.0)
    assert len(world.serving("big")) == 2
    assert len(world.serving("small")) == 2
    held = [item.spec.model for machine in world.machines.values() for item in machine.held.values()]
    assert held.count("small") == 2
    assert held.count("big") == 4
