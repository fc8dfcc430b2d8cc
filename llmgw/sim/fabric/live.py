"""A simulated fabric as it is at this moment: its file, and what its nodes' hardware says of their ports."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmgw.fabric.rates import LANE_GBPS
from llmgw.sim.fabric.plan import SLOW_RATE, Cable, Device, Fabric
from llmgw.sim.hardware_files import HardwareError, is_powered_off, load_parameters

_SYSFS_RATE = re.compile(r"[\d.]+ Gb/sec \((\d+)X ([A-Z0-9]+)\)")


@dataclass(frozen=True)
class Port:
    """Port 1 of a simulated node's adapter. `lid` and `sm_lid` 0: no subnet manager has given it one."""

    linked: bool
    """Its cable carries signals: ACTIVE, or INIT."""
    active: bool
    rate: str
    """`4xNDR`."""
    lid: int
    sm_lid: int

    @property
    def gbps(self) -> float:
        """Its rate in Gb/s."""
        return gbps(self.rate)


@dataclass(frozen=True)
class Link:
    """One end of a cable that is up: the device's own port, and what it leads to."""

    port: int
    peer: Device
    peer_port: int
    rate: str


class Live:
    """A fabric's devices and those of its cables that carry signals."""

    def __init__(self, fabric: Fabric, ports: Mapping[str, Port | None]) -> None:
        self.fabric = fabric
        self._ports = ports
        self.devices = {device.guid: device for device in fabric.devices}
        self.links: dict[str, list[Link]] = {guid: [] for guid in self.devices}
        for cable in fabric.cables:
            rate = self._rate(cable)
            if rate is not None:
                a, b = self.devices[cable.a], self.devices[cable.b]
                self.links[a.guid].append(Link(cable.a_port, b, cable.b_port, rate))
                self.links[b.guid].append(Link(cable.b_port, a, cable.a_port, rate))
        for links in self.links.values():
            links.sort(key=lambda link: link.port)

    def lid(self, device: Device) -> int:
        """The LID of its port; 0 is none."""
        port = self._ports.get(device.guid)
        return device.lid if device.node is None else port.lid if port is not None else 0

    def reach(self, start: Device) -> list[Device]:
        """All that cables join to a device, nearest first, itself included."""
        seen = {start.guid: start}
        for device in (queue := [start]):
            for link in self.links[device.guid]:
                if link.peer.guid not in seen:
                    seen[link.peer.guid] = link.peer
                    queue.append(link.peer)
        return queue

    def gbps_between(self, a: Device, b: Device) -> float | None:
        """The rate of the slowest cable on the best way from one to the other; None where there is no way."""
        best = {a.guid: float("inf")}
        for device in (queue := [a]):
            if device.kind == "switch" or device is a:
                for link in self.links[device.guid]:
                    rate = min(best[device.guid], gbps(link.rate))
                    if rate > best.get(link.peer.guid, 0.0):
                        best[link.peer.guid] = rate
                        queue.append(link.peer)
        return best.get(b.guid)

    def _rate(self, cable: Cable) -> str | None:
        rate = {"up": cable.full, "slow": SLOW_RATE, "down": None}[cable.state]
        for guid in (cable.a, cable.b):
            if self.devices[guid].node is not None:
                port = self._ports.get(guid)
                rate = port.rate if port is not None and port.linked and rate is not None else None
        return rate


def gbps(rate: str) -> float:
    """`4xNDR` → 400."""
    width, _, speed = rate.partition("x")
    return int(width) * LANE_GBPS[speed]


def read_fabric(path: Path) -> Fabric:
    """The file. Raises HardwareError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Fabric)
    except OSError as error:
        raise HardwareError(f"the simulated fabric {path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise HardwareError(f"the simulated fabric {path} is damaged ({error}); make the demo again") from None


def write_fabric(path: Path, fabric: Fabric) -> None:
    """Replace the file as a whole. Raises HardwareError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(fabric)) + b"\n")
        os.replace(beside, path)
    except OSError as error:
        raise HardwareError(f"the simulated fabric {path} cannot be written: {error.strerror}") from None


@contextmanager
def changing(path: Path) -> Iterator[Fabric]:
    """The fabric, to be changed by one at a time; it is written when the block ends well."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        fabric = read_fabric(path)
        yield fabric
        write_fabric(path, fabric)
    finally:
        os.close(folder)


def look(path: Path) -> Live:
    """The fabric as it is now. Raises HardwareError."""
    fabric = read_fabric(path)
    ports = {
        device.guid: read_port(hardware_of(path, fabric, device.node), device.hca)
        for device in fabric.devices
        if device.node is not None and device.hca is not None
    }
    return Live(fabric, ports)


def hardware_of(path: Path, fabric: Fabric, node: str) -> Path:
    """The folder of a node's hardware. Raises HardwareError for a node that is not on the fabric."""
    folder = fabric.hardware.get(node)
    if folder is None:
        raise HardwareError(f"{node} is not on the simulated fabric {fabric.name}")
    return path.parent / folder


def read_port(hardware: Path, hca: str) -> Port | None:
    """Port 1 of an adapter; None when the node is off, or has no such adapter."""
    if is_powered_off(hardware):
        return None
    folder = hardware / "ib" / hca / "ports" / "1"
    try:
        state = (folder / "state").read_text(encoding="ascii").partition(":")[0]
        rate = _SYSFS_RATE.match((folder / "rate").read_text(encoding="ascii"))
        lid, sm_lid = (int((folder / name).read_text(encoding="ascii"), 16) for name in ("lid", "sm_lid"))
    except (OSError, ValueError):
        return None
    return Port(
        linked=state in ("2", "3", "4"),
        active=state == "4",
        rate=f"{rate[1]}x{rate[2]}" if rate else "4xSDR",
        lid=lid if state == "4" and lid < 0xC000 else 0,
        sm_lid=sm_lid if state == "4" else 0,
    )


def own_adapters(live: Live, hardware: Path) -> dict[str, tuple[Device, Port | None]]:
    """The adapters on the fabric of the node whose hardware this is, by name (`mlx5_0`), with their ports now."""
    node = load_parameters(hardware).node
    return {
        device.hca: (device, read_port(hardware, device.hca))
        for device in live.fabric.devices
        if device.hca is not None and device.node == node
    }
