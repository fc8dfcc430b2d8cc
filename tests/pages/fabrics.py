"""Fabrics of the tests' own behind the real admin app: a generated map, live nodes, replicas, traffic."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from llmgw.fabric.managers import Manager, Managers
from llmgw.fabric.report import Analysis, analyse
from llmgw.fleet.model import Fleet, Node, NodeState, Replica, ReplicaState, Seat, Shard
from llmgw.messages.agent import FabricOffer, Inventory, Port, ShardSpec
from llmgw.server.fabrics.drawings import Drawings
from llmgw.server.fabrics.known import FabricMap, KnownFabric
from llmgw.server.fabrics.port_rates import PortRates
from tests.fabric.generate import Fabric, fat_tree

ID = "0xb8cef60300100000"
HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


def small_fabric() -> Fabric:
    """Sixteen nodes on four rails; one planted slow trunk cable, one slow adapter, one hostile description."""
    made = fat_tree(nodes=16, rails=4, leaves=4, spines=2, trunk=2, degraded=1)
    made.adapters[45].name = HOSTILE
    made.rerate(made.adapters[20], 1, "4xHDR")
    return made


@dataclass
class Alive:
    """The parts of a hub that drawings read, over one fabric named `ib-a`."""

    fleet: Fleet = field(default_factory=Fleet)
    port_rates: PortRates = field(default_factory=PortRates)
    clock: Any = field(default_factory=lambda: SimpleNamespace(monotonic=time.monotonic, wall=time.time))
    known: list[KnownFabric] = field(default_factory=list)

    def drawings(self) -> Drawings:
        return Drawings(self, lambda: self.known)  # type: ignore[arg-type]


def ports_of(made: Fabric, name: str, **changes: Any) -> list[Port]:
    """The ports of a generated node, as its agent would tell them."""
    found = []
    for adapter in made.adapters:
        host, _, device = adapter.name.partition(" ")
        if host != name:
            continue
        facts: dict[str, Any] = {
            "adapter": device,
            "port": 1,
            "link_layer": "InfiniBand",
            "state": "ACTIVE",
            "phys_state": "LinkUp",
            "rate_gbps": 400.0,
            "rate_text": "400 Gb/sec (4X NDR)",
            "lid": 7,
            "sm_lid": 1,
            "node_guid": f"0x{adapter.guid:016x}",
            "port_guid": f"0x{adapter.guid:016x}",
            "counters": {"port_xmit_data": 10**12, "port_rcv_data": 10**12, "symbol_error": 3, "link_downed": 0},
        }
        found.append(Port(**(facts | changes)))
    return found


def add_node(alive: Alive, made: Fabric, name: str, *, tx: float = 0.0, rx: float = 0.0, down: str = "") -> None:
    """A node of the cluster with an agent. `tx`, `rx` in Gb/s on every port; `down`: an adapter."""
    ports = ports_of(made, name)
    now = alive.clock.monotonic()
    alive.port_rates.take(name, ports, now - 5)
    later = []
    for port in ports:
        counters = dict(port.counters)
        counters["port_xmit_data"] = 10**12 + int(tx * 1e9 * 5 / 32)
        counters["port_rcv_data"] = 10**12 + int(rx * 1e9 * 5 / 32)
        changes: dict[str, Any] = {"counters": counters}
        if port.adapter == down:
            changes |= {"state": "DOWN", "phys_state": "Polling", "rate_gbps": None, "sm_lid": 0}
        later.append(changed(port, **changes))
    alive.port_rates.take(name, later, now)
    offer = FabricOffer(name="ib-a", adapters=[f"{port.adapter}:1" for port in later], usable=not down)
    alive.fleet.nodes[name] = Node(
        node_id=name,
        state=NodeState.READY,
        session="s",
        last_heard=now,
        inventory=Inventory(ports=later, fabrics=[offer]),
    )


def changed(port: Port, **changes: Any) -> Port:
    return Port(**({name: getattr(port, name) for name in Port.__struct_fields__} | changes))


def add_replica(alive: Alive, replica_id: str, nodes: list[str]) -> None:
    """A ready replica over nodes, whose shards talk over ib-a."""
    replica = Replica(
        replica_id=replica_id,
        model="org/chat-large",
        profile="default",
        profile_hash="h",
        nodes=len(nodes),
        engine="sim",
        state=ReplicaState.READY,
        since=0.0,
        created_at=0.0,
        fabric="ib-a" if len(nodes) > 1 else None,
    )
    for rank, name in enumerate(nodes):
        spec = ShardSpec(
            shard_id=f"{replica_id}.{rank}", replica_id=replica_id, model=replica.model, profile="default",
            profile_hash="h", served_names=[], engine="sim", rank=rank,
        )  # fmt: skip
        replica.seats[rank] = Seat(name, ())
        replica.shards[rank] = Shard(spec=spec, node_id=name, phase="ready")
    alive.fleet.replicas[replica_id] = replica


def judged(alive: Alive, made: Fabric) -> Analysis:
    inventories = {name: node.inventory.ports for name, node in alive.fleet.nodes.items()}
    return analyse(made.text(), inventories=inventories)


def know(alive: Alive, made: Fabric, at: float | None = None, **changes: Any) -> KnownFabric:
    """Has the fabric known, with a map taken at `at` and managers on its first two adapters."""
    master, standby = (Manager(f"0x{each.guid:016x}", 1, 14) for each in made.adapters[:2])
    facts: dict[str, Any] = {
        "id": ID,
        "names": ("ib-a",),
        "managers": Managers(master, [standby], [], "ok", "smir"),
        "managers_at": time.time() - 30,
        "map": FabricMap(time.time() - 100 if at is None else at, "node0001 mlx5_0:1", judged(alive, made)),
        "nodes": tuple(alive.fleet.nodes),
    }
    known = KnownFabric(**(facts | changes))
    alive.known = [known]
    return known
