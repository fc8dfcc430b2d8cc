"""Large fleets of pure data: nodes that have registered, a catalog, and agents that obey at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.fleet.actions import Action
from llmgw.fleet.carry_out import Effects, carry_out
from llmgw.fleet.fabric_facts import FabricFacts, Place
from llmgw.fleet.model import Fleet
from llmgw.fleet.observe import Enrolment, register, report
from llmgw.fleet.reconcile import reconcile
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import (
    EngineOffer,
    FabricOffer,
    Gpu,
    HeldShard,
    Inventory,
    Port,
    Register,
    ShardSpec,
)

GPUS = 8
NODES_PER_LEAF = 16
LEAVES_PER_SPINE = 8
RAILS = 8
DOUBTED_EVERY = 50


def inventory(node_id: str, fabric: str) -> Inventory:
    """Eight GPUs and two adapters on one fabric, with as much said of each as a real agent says."""
    return Inventory(
        gpus=[
            Gpu(
                index=i,
                uuid=f"GPU-{node_id}-{i}",
                name="NVIDIA H100 80GB HBM3",
                memory_total_mib=81559,
                memory_used_mib=0,
                utilization_percent=0,
                temperature_c=40,
                pci_bus_id=f"00000000:{i:02X}:00.0",
                numa_node=i // 4,
                driver_version="550.54.15",
                mig=False,
            )
            for i in range(GPUS)
        ],
        ports=[
            Port(
                adapter=f"mlx5_{i}",
                port=1,
                link_layer="InfiniBand",
                state="ACTIVE",
                phys_state="LinkUp",
                rate_gbps=400.0,
                rate_text="400 Gb/sec (4X NDR)",
                lid=100 + i,
                sm_lid=1,
                node_guid=f"{node_id}:{i}",
                port_guid=f"{node_id}:{i}:1",
                counters=dict.fromkeys(["symbol_error", "link_downed", "port_xmit_data", "port_rcv_data"], 0),
            )
            for i in range(2)
        ],
        fabrics=[FabricOffer(name=fabric, adapters=["mlx5_0:1", "mlx5_1:1"], usable=True, rate_gbps=400.0)],
        engines=[EngineOffer(name="sim")],
    )


def mapped(fleet: Fleet) -> FabricFacts:
    """The fabrics of a fleet as they would be on a map: rails with leaves of their own, every sixteen nodes at
    other ones, joined over spines, and those over cores; one node in fifty has a doubtful cable.
    """
    places: dict[tuple[str, str], Place] = {}
    distances: dict[tuple[str, str], int] = {}
    by_fabric: dict[str, list[str]] = {}
    for node in fleet.nodes.values():
        for name in node.usable_fabrics:
            by_fabric.setdefault(name, []).append(node.node_id)
    for name, node_ids in by_fabric.items():
        units = -(-len(node_ids) // NODES_PER_LEAF)
        for at, node_id in enumerate(node_ids):
            places[node_id, name] = Place(
                physical=name,
                leaves=tuple(f"{name} rail {rail} leaf {at // NODES_PER_LEAF:03d}" for rail in range(RAILS)),
                aligned=True,
                doubts=("mlx5_0 port 1 counts symbol errors",) if at % DOUBTED_EVERY == 7 else (),
            )
        for rail in range(RAILS):
            leaves = [f"{name} rail {rail} leaf {unit:03d}" for unit in range(units)]
            for one in range(units):
                for other in range(one + 1, units):
                    near = one // LEAVES_PER_SPINE == other // LEAVES_PER_SPINE
                    distances[leaves[one], leaves[other]] = 1 if near else 2
    return FabricFacts(places, distances)


def mixed_catalog(profiles: int, replicas: int) -> Catalog:
    """Models of one profile each: of ten, six run on one node, two on two nodes, two on four."""
    forms = [(1, 1), (1, 2), (2, 4), (1, 8), (1, 4), (4, 8), (1, 1), (2, 8), (1, 2), (4, 4)]
    share, rest = divmod(replicas, profiles)
    return Catalog(
        models=[
            CatalogModel(
                name=f"model-{i:02d}",
                profiles=[
                    Profile(
                        engine="sim",
                        nodes=forms[i % len(forms)][0],
                        gpus_per_node=forms[i % len(forms)][1],
                        replicas=share + (1 if i < rest else 0),
                    )
                ],
            )
            for i in range(profiles)
        ]
    )


@dataclass
class LargeFleet:
    """A fleet whose agents answer at once, and the actions that were decided on."""

    catalog: Catalog
    nodes: int
    fabrics: int = 10
    settings: FleetSettings = field(default_factory=FleetSettings)
    now: float = 1000.0
    fleet: Fleet = field(default_factory=Fleet)
    actions: list[Action] = field(default_factory=list)
    _ids: int = 0
    _held: dict[str, dict[str, HeldShard]] = field(default_factory=dict)

    def register_all(self) -> None:
        """Every node registers and holds nothing."""
        for i in range(self.nodes):
            node_id = f"node{i:04d}"
            message = Register(
                node_id=node_id,
                boot_id="boot",
                instance="one",
                instance_started_at=0.0,
                counter=1,
                version="1",
                inventory=inventory(node_id, f"ib-{i * self.fabrics // self.nodes}"),
            )
            register(self.fleet, message, Enrolment(f"10.0.{i // 250}.{i % 250 + 1}"), f"s{i}", self.now)
            self._held[node_id] = {}

    def plan(self) -> list[Action]:
        """One reconcile."""
        return reconcile(self.fleet, self.catalog, self.now, self.settings, self._new_id)

    def until_quiet(self) -> None:
        """Reconcile, carry out and let the agents answer until nothing is left to do."""
        while True:
            quiet = True
            while actions := self.plan():
                quiet = False
                self.actions += actions
                effects = Effects()
                for action in actions:
                    carry_out(self.fleet, self.catalog, action, self.now, self.settings, effects)
                self._obey(effects)
            if quiet:
                return

    def hear_all(self, now: float) -> None:
        """Every node's agent was heard just now."""
        self.now = now
        for node in self.fleet.nodes.values():
            node.last_heard = now

    def _obey(self, effects: Effects) -> None:
        touched: dict[str, list[HeldShard]] = {}
        for node_id, spec in effects.starts:
            touched.setdefault(node_id, []).append(self._take(node_id, spec))
        for node_id, shard_id, _ in effects.stops:
            held = self._held[node_id].pop(shard_id)
            touched.setdefault(node_id, []).append(
                msgspec.structs.replace(held, phase="stopped", version=held.version + 1)
            )
        for node_id, shards in touched.items():
            report(self.fleet, node_id, None, shards, self.now)

    def _take(self, node_id: str, spec: ShardSpec) -> HeldShard:
        held = HeldShard(
            spec=spec,
            phase="ready",
            http_port=21000 if spec.rank == 0 else None,
            rendezvous_port=21001 if spec.rank == 0 and spec.nodes > 1 else None,
        )
        self._held[node_id][spec.shard_id] = held
        return held

    def _new_id(self, model: str) -> str:
        self._ids += 1
        return f"{model}-{self._ids}"
