"""A simulated fabric as a file says it: switches, adapters, cables, managers; and the one that a demo gets.

What belongs to a simulated node is not said twice: its ports' states, rates and LIDs stay in its hardware.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from llmgw.sim.hardware_adapters import adapter_guid, port_lid

SWITCH_DEVICE = 0xD2F2  # Quantum-2
ADAPTER_DEVICE = 0x1021  # ConnectX-7
SHARP_DEVICE = 0xCF09
SHARP_NAME = "Mellanox Technologies Aggregation Node"
SWITCH_PORTS = 65
"""64 for cables, and the last for the switch's own SHARP node."""
FULL_RATE = "4xNDR"
SLOW_RATE = "4xHDR"
"""What a cable comes to that trained at the speed below."""
MASTER_PRIORITY, STANDBY_PRIORITY = 14, 12

_FIRST_UPLINK = 33
_UPLINKS_TO_A_SPINE = 2
_SPINES = 2
NODES_A_UNIT = 16
_HOSTS_BESIDE = 2
"""Hosts without agents on the leaves of the first nodes."""
_HOSTS_APART = 6
"""Hosts without agents on leaves of their own."""
_SWITCH_PREFIX, _HOST_PREFIX = "fc6a1c03", "a088c203"

CableState = Literal["up", "slow", "down"]
ManagerState = Literal["running", "stopped"]
Kind = Literal["switch", "adapter", "sharp"]


class Device(msgspec.Struct, kw_only=True):
    """A switch or an adapter. `guid`: 16 hexadecimal digits, of the node and of its port 1.

    An adapter of a simulated node has its `node` and the adapter's name there (`hca`), and no LID here.
    """

    kind: Kind
    guid: str
    label: str
    """What commands call it: `ib-a-leaf-1`, `node01:mlx5_0`."""
    name: str
    """Its description on the fabric."""
    ports: int
    device: int
    lid: int = 0
    node: str | None = None
    hca: str | None = None


class Cable(msgspec.Struct, kw_only=True):
    """Between port `a_port` of device `a` and `b_port` of `b`, by GUID. `full`: what both ends can do."""

    a: str
    a_port: int
    b: str
    b_port: int
    full: str = FULL_RATE
    state: CableState = "up"


class Manager(msgspec.Struct, kw_only=True):
    """A subnet manager on port 1 of an adapter."""

    guid: str
    priority: int
    state: ManagerState = "running"


class Fabric(msgspec.Struct, kw_only=True):
    """The file. `hardware`: node → its hardware's folder, absolute or from the file's own folder."""

    name: str
    devices: list[Device] = []
    cables: list[Cable] = []
    managers: list[Manager] = []
    hardware: dict[str, str] = {}
    electing: bool = False
    """The master is dead and no standby has noticed yet: nothing answers."""

    def device(self, guid: str) -> Device:
        """By GUID. Raises KeyError."""
        for device in self.devices:
            if device.guid == guid:
                return device
        raise KeyError(guid)

    def master(self) -> Manager | None:
        """Of those that run the one with the highest priority, of equals the lowest GUID (InfiniBand, 14.4.1)."""
        running = [manager for manager in self.managers if manager.state == "running"]
        return min(running, key=lambda manager: (-manager.priority, manager.guid), default=None)


def plan_fabric(
    name: str,
    adapters: Mapping[str, Sequence[str]],
    hardware: Mapping[str, str],
    *,
    slow: bool = False,
    nodes_a_unit: int = NODES_A_UNIT,
) -> Fabric:
    """A healthy fabric of two tiers around nodes, whose Nth adapters have a leaf of their own each.

    `adapters`: node → its adapters in order (`mlx5_0` is the simulated hardware's number 0); `hardware`: node →
    the folder. `nodes_a_unit` of them share their leaves. There are hosts without agents beside them, one SHARP
    node, a master and a standby. `slow`: one cable between a leaf and a spine has trained at the speed below.
    """
    return _Planner(Fabric(name=name, hardware=dict(hardware)), nodes_a_unit).plan(adapters, slow)


class _Planner:
    def __init__(self, fabric: Fabric, nodes_a_unit: int) -> None:
        self._fabric = fabric
        self._nodes_a_unit = nodes_a_unit
        self._next_port: dict[str, int] = {}
        self._taken: set[int] = set()
        self._lids: Iterator[int] = iter(range(1, 1))

    def plan(self, adapters: Mapping[str, Sequence[str]], slow: bool) -> Fabric:
        fabric, name = self._fabric, self._fabric.name
        self._taken = {port_lid(node, _number(hca)) for node, names in adapters.items() for hca in names}
        self._lids = (lid for lid in range(1, 0xC000) if lid not in self._taken)
        managers = [self._host(f"{name}-sm{number}", 0) for number in (1, 2)]
        fabric.managers = [
            Manager(guid=host.guid, priority=priority)
            for host, priority in zip(managers, (MASTER_PRIORITY, STANDBY_PRIORITY), strict=True)
        ]
        rails = max([2, *(len(names) for names in adapters.values())])
        units = max(1, -(-len(adapters) // self._nodes_a_unit))
        spines = [self._switch(f"{name}-spine-{number + 1}") for number in range(_SPINES)]
        leaves = [[self._leaf(unit * rails + rail, spines) for rail in range(rails)] for unit in range(units + 1)]
        for at, (node, names) in enumerate(adapters.items()):
            for rail, hca in enumerate(names):
                self._plug(leaves[at // self._nodes_a_unit][rail], self._own(node, hca))
        for number in range(_HOSTS_BESIDE + _HOSTS_APART):
            unit = leaves[0] if number < _HOSTS_BESIDE else leaves[-1]
            for rail, leaf in enumerate(unit):
                self._plug(leaf, self._host(f"{name}-host{number + 1}", rail))
        for leaf, host in zip((leaves[0][0], leaves[-1][0]), managers, strict=True):
            self._plug(leaf, host)
        self._sharp(leaves[0][0])
        if slow:
            next(cable for cable in fabric.cables if cable.a_port == _FIRST_UPLINK + 1).state = "slow"
        return fabric

    def _leaf(self, number: int, spines: Sequence[Device]) -> Device:
        leaf = self._switch(f"{self._fabric.name}-leaf-{number + 1}")
        for at in range(len(spines) * _UPLINKS_TO_A_SPINE):
            spine = spines[at // _UPLINKS_TO_A_SPINE]
            self._join(leaf, _FIRST_UPLINK + at, spine, self._port(spine))
        return leaf

    def _switch(self, label: str) -> Device:
        return self._add(
            Device(
                kind="switch",
                guid=f"{int(_guid(_SWITCH_PREFIX, label), 16) & ~0x3F:016x}",
                label=label,
                name=f"MF0;{label}:MQM9700/U1",
                ports=SWITCH_PORTS,
                device=SWITCH_DEVICE,
                lid=next(self._lids),
            )
        )

    def _host(self, host: str, number: int) -> Device:
        """An adapter of a host that has no agent."""
        made = self._adapter(_guid(_HOST_PREFIX, f"{host}/{number}"), host, f"mlx5_{number}")
        made.lid = next(self._lids)
        return made

    def _own(self, node: str, hca: str) -> Device:
        """An adapter of a simulated node."""
        made = self._adapter(adapter_guid(node, _number(hca)), node, hca)
        made.node, made.hca = node, hca
        return made

    def _adapter(self, guid: str, host: str, hca: str) -> Device:
        return self._add(
            Device(
                kind="adapter",
                guid=guid,
                label=f"{host}:{hca}",
                name=f"{host} {hca}",
                ports=1,
                device=ADAPTER_DEVICE,
            )
        )

    def _sharp(self, switch: Device) -> None:
        guid = f"{int(switch.guid, 16) + 0x10:016x}"
        node = self._add(
            Device(
                kind="sharp",
                guid=guid,
                label=f"{switch.label}-sharp",
                name=SHARP_NAME,
                ports=1,
                device=SHARP_DEVICE,
                lid=next(self._lids),
            )
        )
        self._join(switch, switch.ports, node, 1)

    def _plug(self, leaf: Device, adapter: Device) -> None:
        self._join(leaf, self._port(leaf), adapter, 1)

    def _add(self, device: Device) -> Device:
        self._fabric.devices.append(device)
        return device

    def _port(self, switch: Device) -> int:
        port = self._next_port[switch.guid] = self._next_port.get(switch.guid, 0) + 1
        return port

    def _join(self, a: Device, a_port: int, b: Device, b_port: int) -> None:
        self._fabric.cables.append(Cable(a=a.guid, a_port=a_port, b=b.guid, b_port=b_port))


def _number(hca: str) -> int:
    return int(hca.removeprefix("mlx5_"))


def _guid(prefix: str, what: str) -> str:
    return prefix + hashlib.sha256(what.encode()).hexdigest()[:8]
