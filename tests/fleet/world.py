"""A small pure world around the core: nodes that hold shards, a clock, and messages that may get lost."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from llmgw.config.catalog import Catalog
from llmgw.fleet.carry_out import Effects, carry_out
from llmgw.fleet.distrust import forget_forms
from llmgw.fleet.events import Event
from llmgw.fleet.model import LOST, Fleet, Node, NodeState, Replica, ReplicaState
from llmgw.fleet.observe import Enrolment, register, report, witness
from llmgw.fleet.reconcile import reconcile
from llmgw.fleet.routes import routes
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import (
    LIVE_PHASES,
    EngineOffer,
    FabricOffer,
    Gpu,
    HeldShard,
    Inventory,
    Register,
    ShardSpec,
)
from llmgw.messages.routes import TableVersion

PHASES = ["starting", "ready"]


@dataclass
class Machine:
    """A node as it really is: what it holds, and whether it is cut off."""

    node_id: str
    fabrics: list[str]
    gpus: int = 8
    free_ports: int | None = None
    alive: bool = True
    connected: bool = True
    boot: int = 0
    session: str | None = None
    counter: int = 0
    held: dict[str, HeldShard] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    """Fabrics whose port is down."""
    inbox: list[tuple[str, object]] = field(default_factory=list)

    def inventory(self) -> Inventory:
        return Inventory(
            gpus=[Gpu(index=i, uuid=f"{self.node_id}-gpu{i}", name="sim") for i in range(self.gpus)],
            fabrics=[
                FabricOffer(name=name, reason="mlx5_0 port 1 is not up (DOWN, Polling): no cable or dead peer")
                if name in self.down
                else FabricOffer(name=name, adapters=["mlx5_0:1"], usable=True)
                for name in self.fabrics
            ],
            engines=[EngineOffer(name="sim")],
            free_ports=self.free_ports,
            port_range="21000-21999",
        )


class World:
    """Machines, the fleet as the control plane sees it, and a clock in seconds."""

    def __init__(self, catalog: Catalog, machines: list[Machine], settings: FleetSettings | None = None) -> None:
        self.catalog = catalog
        self.machines = {machine.node_id: machine for machine in machines}
        self.settings = settings or FleetSettings(settle_s=2.0)
        self.now = 1000.0
        self.fleet = Fleet()
        self.events: list[Event] = []
        self.ids = 0
        self.epoch = 0
        self.start_server()

    # The server.

    def start_server(self) -> None:
        known = [
            Node(node.node_id, known=True, cordoned=node.cordoned, draining=node.draining, since=self.now)
            for node in self.fleet.nodes.values()
        ]
        self.fleet = Fleet(nodes={node.node_id: node for node in known})
        self.fleet.settling_until = self.now + self.settings.settle_s
        self.epoch += 1
        for machine in self.machines.values():
            machine.session = None
            machine.inbox.clear()

    def apply(self, catalog: Catalog) -> None:
        """Another catalog rules."""
        forget_forms(self.fleet, self.catalog, catalog)
        self.catalog = catalog

    def new_id(self, model: str) -> str:
        self.ids += 1
        return f"{model}-{self.ids}"

    def turn(self) -> None:
        for _ in range(500):
            actions = reconcile(self.fleet, self.catalog, self.now, self.settings, self.new_id)
            if not actions:
                break
            effects = Effects()
            for action in actions:
                carry_out(self.fleet, self.catalog, action, self.now, self.settings, effects)
            self.events += effects.events
            for node_id, spec in effects.starts:
                self.machines[node_id].inbox.append(("start", spec))
            for node_id, shard_id, _ in effects.stops:
                self.machines[node_id].inbox.append(("stop", shard_id))
        else:
            raise AssertionError(f"reconcile does not come to an end: {actions}")
        for replica in self.fleet.replicas.values():
            if replica.state is ReplicaState.DRAINING and replica.withdrawn is None:
                replica.withdrawn = TableVersion(str(self.epoch), 1)

    # The machines.

    def speak(self, machine: Machine) -> None:
        """One heartbeat of an agent: register when needed, take commands, report."""
        if not (machine.alive and machine.connected):
            return
        node = self.fleet.nodes.get(machine.node_id)
        if machine.session is None or node is None or node.session != machine.session:
            machine.counter += 1
            machine.session = f"{machine.node_id}-{machine.boot}-{machine.counter}-{self.epoch}"
            machine.inbox.clear()
            message = Register(
                node_id=machine.node_id,
                boot_id=f"boot{machine.boot}",
                instance="one",
                instance_started_at=0.0,
                counter=machine.counter,
                version="1",
                inventory=machine.inventory(),
                held=list(machine.held.values()),
            )
            enrolment = Enrolment(address=f"10.0.0.{list(self.machines).index(machine.node_id) + 1}")
            self.events += register(self.fleet, message, enrolment, machine.session, self.now)
            return
        for kind, what in machine.inbox:
            if kind == "start" and isinstance(what, ShardSpec):
                self._start(machine, what)
            elif isinstance(what, str):
                self._stop(machine, what)
        machine.inbox.clear()
        self._advance(machine)
        statuses = list(machine.held.values())
        self.events += report(self.fleet, machine.node_id, machine.inventory(), statuses, self.now)
        machine.held = {k: v for k, v in machine.held.items() if v.phase not in ("stopped", "failed")}

    def _start(self, machine: Machine, spec: ShardSpec) -> None:
        if spec.shard_id in machine.held or spec.shard_id in machine.ended:
            return
        live = [held for held in machine.held.values() if held.phase in LIVE_PHASES]
        taken = {gpu for held in live for gpu in held.spec.gpus}
        assert not taken & set(spec.gpus), f"{spec.shard_id} is started on GPUs that are in use"
        machine.held[spec.shard_id] = HeldShard(
            spec=spec,
            phase="starting",
            http_port=21000 if spec.rank == 0 else None,
            rendezvous_port=21001 if spec.rank == 0 and spec.nodes > 1 else None,
        )

    def _stop(self, machine: Machine, shard_id: str) -> None:
        held = machine.held.get(shard_id)
        if held is not None:
            self.change(machine, shard_id, "stopped")

    def _advance(self, machine: Machine) -> None:
        for shard_id, held in list(machine.held.items()):
            if held.phase == "starting" and self._joined(held.spec):
                self.change(machine, shard_id, "ready")

    def _joined(self, spec: ShardSpec) -> bool:
        count = sum(
            1
            for machine in self.machines.values()
            if machine.alive
            for held in machine.held.values()
            if held.spec.replica_id == spec.replica_id and held.phase in PHASES
        )
        return count == spec.nodes

    def change(self, machine: Machine, shard_id: str, phase: str, reason: str | None = None) -> None:
        held = machine.held[shard_id]
        machine.held[shard_id] = msgspec.structs.replace(
            held, phase=phase, reason=reason, version=held.version + 1
        )
        if phase in ("stopped", "failed"):
            machine.ended.add(shard_id)

    def crash_engine(self, machine: Machine, shard_id: str) -> None:
        self.change(machine, shard_id, "failed", "engine exited with code 1")

    def kill(self, node_id: str) -> None:
        """Power off: everything on it ends, and gangs that lose a rank end everywhere."""
        machine = self.machines[node_id]
        machine.alive = False
        gone = {held.spec.replica_id for held in machine.held.values()}
        machine.held.clear()
        for other in self.machines.values():
            for shard_id, held in list(other.held.items()):
                if held.spec.replica_id in gone and held.spec.rank == 0 and held.phase in PHASES:
                    self.change(other, shard_id, "failed", "a worker's connection closed")

    def boot(self, node_id: str) -> None:
        machine = self.machines[node_id]
        machine.alive, machine.session, machine.counter = True, None, 0
        machine.boot += 1

    # Time.

    def run(self, seconds: float, step_s: float = 1.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += step_s
            for machine in self.machines.values():
                self.speak(machine)
            for replica in self.fleet.replicas.values():
                if replica.state is ReplicaState.READY and self.works(replica):
                    witness(self.fleet, replica.replica_id, self.now)
            self.turn()
            self.check()

    def works(self, replica: Replica) -> bool:
        """True when somebody sees the replica's leader work."""
        leader = replica.leader
        if leader is None:
            return False
        machine = self.machines[leader.node_id]
        held = machine.held.get(leader.shard_id)
        return machine.alive and held is not None and held.phase == "ready"

    def serving(self, model: str) -> list[str]:
        """Replica ids that routers would send requests to."""
        for route in routes(self.fleet, self.catalog, {}):
            if route.name == model:
                return [endpoint.id for endpoint in route.endpoints]
        return []

    def replicas(self, model: str, state: ReplicaState | None = None) -> list[str]:
        return [
            replica.replica_id
            for replica in self.fleet.replicas.values()
            if replica.model == model and (state is None or replica.state is state)
        ]

    # Invariants of DESIGN.md section 4, by number.

    def check(self) -> None:
        fleet = self.fleet
        for replica in fleet.replicas.values():
            if replica.nodes > 1 and replica.live:  # 1
                assert replica.fabric is not None
                for seat in replica.seats.values():
                    machine = self.machines.get(seat.node_id)
                    assert machine is None or replica.fabric in machine.fabrics, (
                        f"{replica.replica_id} leaves its fabric"
                    )
                assert len(set(replica.node_ids)) == len(replica.seats)
        owner: dict[tuple[str, str], str] = {}
        for replica in fleet.replicas.values():  # 2
            for rank, seat in replica.seats.items():
                shard = replica.shards.get(rank)
                if not (shard.holds_gpus if shard is not None else replica.live):
                    continue
                for gpu in seat.gpus:
                    key = (seat.node_id, gpu)
                    assert key not in owner, f"{key} belongs to {owner[key]} and {replica.replica_id}"
                    owner[key] = replica.replica_id
        for machine in self.machines.values():
            held = [g for item in machine.held.values() if item.phase in LIVE_PHASES for g in item.spec.gpus]
            assert len(held) == len(set(held)), f"{machine.node_id} uses a GPU twice"
        for route in routes(fleet, self.catalog, {}):  # 6
            for endpoint in route.endpoints:
                routed = fleet.replicas.get(endpoint.id)
                if routed is not None:
                    assert routed.leader is not None
                    assert routed.leader.phase == "ready"
                    assert routed.state is ReplicaState.READY
        for replica in fleet.replicas.values():  # 3: at most one replacement
            replacing = [r for r in fleet.replicas.values() if r.replaces == replica.replica_id and r.live]
            assert len(replacing) <= 1
        for node in fleet.nodes.values():
            if node.state is NodeState.LOST:
                for _, shard in fleet.shards_on(node.node_id):
                    assert shard.phase == LOST
