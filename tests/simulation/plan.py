"""What a seed stands for: the machines, the catalog, the limits, and how rough the world is."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.settings import FleetSettings

RUN_S = 600.0
FAULTS_UNTIL_S = (240.0, 420.0)
HEARTBEAT_S = 5.0
RECONNECT_BASE_S = 1.0
RECONNECT_MAX_S = 30.0
RENDEZVOUS_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 90.0
LOAD_S_MAX = 30.0
STOP_S_MAX = 10.0
POLL_TIMEOUT_S = 40.0
STALL_AFTER_S = 30.0
STALLED_LIMIT_S = 60.0
PROBE_INTERVAL_S = 20.0
LONG_LIFE_S = 365 * 86400.0
FIRST_BYTE_S_MAX = 100.0
HUNG_FOR_EVER_MAX = 6
"""Engines that still hang when the faults are over, at most: they come back only by being given up."""
EVICTION_WINDOW_S = 60.0


@dataclass(frozen=True)
class MachinePlan:
    """A machine as it was built."""

    node_id: str
    address: str
    gpus: int
    fabrics: tuple[str, ...]
    physical: str | None = None
    """The physical fabric that its adapters are cabled to: one name may stand for two."""
    leaves: tuple[str, ...] = ()
    """The leaf of each of its adapters."""


@dataclass(frozen=True)
class Roughness:
    """Probabilities of what the network does to one call, and the mean time between faults, in seconds."""

    lost_request: float
    lost_answer: float
    late: float
    repeated: float
    fault_every_s: float


@dataclass(frozen=True)
class Plan:
    """One seed's world."""

    seed: int
    machines: tuple[MachinePlan, ...]
    catalog: Catalog
    settings: FleetSettings
    roughness: Roughness
    faults_until_s: float
    certificate_life_s: float
    """Of every certificate of a node; short ones are renewed, or end, within a run."""
    roomy: bool
    """True when everything fits wherever the rest happens to sit, so that nothing excuses a missing replica."""

    @property
    def bound_s(self) -> float:
        """From the end of all faults to the desired state, in virtual seconds, at worst.

        A call that was under way runs into its timeout and the agent waits for its next try; a server that has
        just started settles; a node that cannot be heard is given up; the last failure's backoff runs out;
        engines that hang are given up, when that is due and within its cap; then every replica of a model may
        have to move, one after the other, each drained, stopped and loaded.
        """
        settings = self.settings
        moves = max(sum(profile.replicas for profile in model.profiles) for model in self.catalog.models)
        return (
            POLL_TIMEOUT_S
            + RECONNECT_MAX_S
            + settings.settle_s
            + settings.unreachable_limit_s
            + settings.backoff_max_s
            + settings.commanded_timeout_s
            + settings.stall_after_s
            + max(settings.stalled_limit_s, FIRST_BYTE_S_MAX)
            + EVICTION_WINDOW_S * HUNG_FOR_EVER_MAX / 2
            + (moves + 1) * (settings.drain_grace_s + STOP_S_MAX + LOAD_TIMEOUT_S)
        )


def plan_of(seed: int) -> Plan:
    """The world of a seed. Nine in ten have 4 to 8 nodes, the others up to 40."""
    rng = random.Random(f"plan {seed}")
    count = rng.randint(12, 40) if rng.random() < 0.1 else rng.randint(4, 8)
    roomy = rng.random() < (0.75 if count <= 8 else 0.3)
    machines = _cabled(random.Random(f"cables {seed}"), _machines(rng, count))
    settings = FleetSettings(
        settle_s=rng.choice([10.0, 45.0]),
        unreachable_limit_s=rng.choice([60.0, 300.0]),
        drain_grace_s=rng.choice([10.0, 60.0]),
        backoff_max_s=rng.choice([40.0, 300.0]),
        stall_after_s=STALL_AFTER_S,
        stalled_limit_s=STALLED_LIMIT_S,
        probe_interval_s=PROBE_INTERVAL_S,
    )
    rough = rng.choice([0.0, 0.01, 0.03])
    return Plan(
        seed=seed,
        machines=machines,
        catalog=_catalog(rng, machines, roomy),
        settings=settings,
        roughness=Roughness(
            lost_request=rough,
            lost_answer=rough,
            late=rough / 2,
            repeated=rough,
            fault_every_s=rng.choice([5.0, 10.0, 20.0, 50.0]),
        ),
        faults_until_s=rng.uniform(*FAULTS_UNTIL_S),
        certificate_life_s=rng.choice([450.0, 700.0, LONG_LIFE_S, LONG_LIFE_S]),
        roomy=roomy,
    )


def _machines(rng: random.Random, count: int) -> tuple[MachinePlan, ...]:
    fabrics = ["ib-a", "ib-b", "ib-c"][: 1 + min(2, count // 4)]
    machines = []
    for at in range(count):
        # The first ones make sure that every fabric can hold a replica of two nodes.
        name = fabrics[at // 2] if at // 2 < len(fabrics) else rng.choice(fabrics)
        own = (name,) if at < 4 or rng.random() < 0.8 else ()
        machines.append(MachinePlan(f"node{at + 1:02d}", f"10.0.0.{at + 1}", rng.choice([8, 8, 10]), own))
    return tuple(machines)


def _cabled(rng: random.Random, machines: tuple[MachinePlan, ...]) -> tuple[MachinePlan, ...]:
    """Which machines hang on which leaves, of which physical fabric; every third name stands for two of those."""
    railed, split = rng.random() < 0.5, {name for name in ("ib-a", "ib-b", "ib-c") if rng.random() < 0.35}
    nodes_per_leaf = rng.choice([1, 2, 2, 4])
    seen: Counter[str] = Counter()
    cabled = []
    for machine in machines:
        if machine.fabrics:
            (name,) = machine.fabrics
            # In pairs, so that a replica of two nodes finds a place on one of them.
            physical = f"{name}-{1 + (seen[name] // 2) % 2}" if name in split else f"{name}-1"
            seen[name] += 1
            unit = seen[physical] // nodes_per_leaf
            seen[physical] += 1
            leaves = tuple(f"{physical} leaf {unit} rail {rail}" for rail in ((0, 1) if railed else (0, 0)))
            machine = replace(machine, physical=physical, leaves=leaves)
        cabled.append(machine)
    return tuple(cabled)


def _catalog(rng: random.Random, machines: tuple[MachinePlan, ...], roomy: bool) -> Catalog:
    common = {"engine": "sim", "rendezvous_timeout": RENDEZVOUS_TIMEOUT_S, "load_timeout": LOAD_TIMEOUT_S}
    if roomy:
        # All replicas together, one replacement a model included, fit on any one node.
        big = Profile(nodes=2, gpus_per_node=2, replicas=1, **common)
        small = Profile(gpus_per_node=1, replicas=rng.randint(1, 3), **common)
        models = [("big", big), ("small", small)]
    else:
        models = [
            ("big", Profile(nodes=rng.randint(2, 3), gpus_per_node=4, replicas=rng.randint(1, 2), **common)),
            (
                "small",
                Profile(
                    gpus_per_node=rng.choice([1, 2, 4]),
                    replicas=rng.randint(1, max(3, len(machines) // 2)),
                    stop_first=rng.random() < 0.3,
                    **common,
                ),
            ),
            ("huge", Profile(nodes=2, gpus_per_node=8, replicas=1, stop_first=rng.random() < 0.5, **common)),
            ("tiny", Profile(gpus_per_node=1, replicas=rng.randint(1, len(machines)), **common)),
        ][: rng.randint(2, 4)]
    first_byte_s = rng.choice([30.0, FIRST_BYTE_S_MAX])
    return Catalog(
        models=[
            CatalogModel(name=name, profiles=[profile], first_byte_timeout=first_byte_s)
            for name, profile in models
        ]
    )
