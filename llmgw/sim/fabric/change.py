"""What can be done to a simulated fabric while agents look: cables pulled and put back, managers killed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from llmgw.sim.fabric.live import changing, hardware_of, look
from llmgw.sim.fabric.plan import Cable, CableState, Device, Fabric
from llmgw.sim.hardware import set_port
from llmgw.sim.hardware_files import HardwareError, load_parameters, save_parameters, write_file

_PORT_STATE: dict[CableState, Literal["active", "slow", "down"]] = {
    "up": "active",
    "slow": "slow",
    "down": "down",
}
SHOWN_MAX = 20


def fabric_path(demo: Path, name: str) -> Path:
    """Where a demo's folder has a fabric. Raises HardwareError for one that it does not have."""
    path = demo / "fabrics" / f"{name}.json"
    known = sorted(file.stem for file in (demo / "fabrics").glob("*.json"))
    if name not in known:
        raise HardwareError(f"the demo has no fabric {name!r}; it has {', '.join(known) or 'none'}")
    return path


def set_cable(path: Path, device: str, port: int, state: CableState) -> str:
    """Pull a cable (`down`), let it train too slowly (`slow`), or put it right (`up`); says between what it is.

    `device` is what its ends are called: `ib-a-leaf-1`, `node01:mlx5_0`. The cable of a node's adapter is told by
    the node's own port too. Raises HardwareError for an end without a cable.
    """
    with changing(path) as fabric:
        cable = _cable(fabric, device, port)
        ends = [(fabric.device(cable.a), cable.a_port), (fabric.device(cable.b), cable.b_port)]
        owners = [end for end, _ in ends if end.node is not None]
        for end in owners:
            assert end.node is not None
            assert end.hca is not None
            set_port(hardware_of(path, fabric, end.node), end.hca, _PORT_STATE[state])
        if not owners:
            cable.state = state
    return " - ".join(f"{end.label}[{number}]" for end, number in ends)


def stop_manager(path: Path, host: str | None = None) -> tuple[str, bool]:
    """Kill a subnet manager, the master unless a host is named; says whose it was, and whether it was the master.

    After a master's death nothing answers until `elect` is called, as nothing does in a real fabric until the
    standby has noticed. Raises HardwareError.
    """
    with changing(path) as fabric:
        master = fabric.master()
        chosen = master
        if host is not None:
            hosts = {fabric.device(one.guid).label.partition(":")[0]: one for one in fabric.managers}
            if host not in hosts:
                raise HardwareError(f"{host} manages no {fabric.name}; its managers are on {', '.join(hosts)}")
            chosen = hosts[host]
        if chosen is None or chosen.state == "stopped":
            raise HardwareError(
                f"{host or 'every manager'} of {fabric.name} is stopped already; "
                f"llmgw sim start-managers {fabric.name} starts them"
            )
        was_master = chosen is master
        chosen.state = "stopped"
        fabric.electing = fabric.electing or was_master
        return fabric.device(chosen.guid).label.partition(":")[0], was_master


def start_managers(path: Path) -> None:
    """Start those that were killed. The one with the highest priority is master, as OpenSM decides it."""
    with changing(path) as fabric:
        for manager in fabric.managers:
            manager.state = "running"
    elect(path)


def elect(path: Path) -> str | None:
    """Let the standby notice: it takes over and tells every port its LID. The new master's host, if there is one.

    Without a manager nothing answers, and the ports keep what the last one told them. Raises HardwareError.
    """
    with changing(path) as fabric:
        master = fabric.master()
        fabric.electing = master is None
        if master is None:
            return None
        device = fabric.device(master.guid)
    live = look(path)
    reached = {one.node for one in live.reach(device) if one.node is not None}
    for node in sorted(reached):
        set_sm_lid(hardware_of(path, live.fabric, node), live.lid(device))
    return device.label.partition(":")[0]


def set_sm_lid(hardware: Path, lid: int) -> None:
    """Tell a node's ports their subnet manager's LID. A port in INIT has none. Raises HardwareError."""
    parameters = load_parameters(hardware)
    save_parameters(hardware, msgspec.structs.replace(parameters, sm_lid=lid))
    for path in sorted((hardware / "ib").glob("*/ports/1/sm_lid")):
        if path.read_text(encoding="ascii").strip() != "0x0":
            write_file(hardware, str(path.relative_to(hardware)), f"{lid:#x}\n")


def _cable(fabric: Fabric, device: str, port: int) -> Cable:
    found: Device | None = next((one for one in fabric.devices if one.label == device), None)
    if found is None:
        labels = [one.label for one in fabric.devices if one.kind != "sharp"]
        shown = ", ".join(labels[:SHOWN_MAX]) + (" …" if len(labels) > SHOWN_MAX else "")
        raise HardwareError(f"{fabric.name} has no {device!r}; it has {shown}")
    ports = {}
    for cable in fabric.cables:
        if cable.a == found.guid:
            ports[cable.a_port] = cable
        elif cable.b == found.guid:
            ports[cable.b_port] = cable
    if port not in ports:
        raise HardwareError(f"{device} has no cable in port {port}; it has {', '.join(map(str, sorted(ports)))}")
    return ports[port]
