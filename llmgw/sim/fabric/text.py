"""What a simulated fabric answers to `ibnetdiscover` and `saquery SMIR`, as infiniband-diags 44.0 does."""

from __future__ import annotations

from collections.abc import Iterator

from llmgw.sim.fabric.live import Live
from llmgw.sim.fabric.plan import Device, Manager

_VENDOR = 0x2C9


def map_text(live: Live, start: Device, generated: str) -> str:
    """All that the device reaches, switches first. `generated`: the time, as ctime(3) writes it."""
    reached = live.reach(start)
    switches = [device for device in reached if device.kind == "switch"]
    others = [device for device in reached if device.kind != "switch"]
    lines = ["#", f"# Topology file: generated on {generated}", "#"]
    lines += [f"# Initiated from node {start.guid} port {start.guid}", ""]
    for device in [*switches, *others]:
        lines += _record(live, device)
    return "\n".join(lines) + "\n"


def managers_text(live: Live, seconds: float) -> str:
    """Every manager that runs, by its LID. `seconds`: the time, which their activity counters follow."""
    fabric = live.fabric
    master = fabric.master()
    running = [manager for manager in fabric.managers if manager.state == "running"]
    records = [
        _manager(manager, live.lid(fabric.device(manager.guid)), 3 if manager is master else 2, int(seconds))
        for manager in running
    ]
    return "".join(records)


def _record(live: Live, device: Device) -> Iterator[str]:
    switch = device.kind == "switch"
    yield f"vendid={_VENDOR:#x}"
    yield f"devid={device.device:#x}"
    yield f"sysimgguid={_bare(device.guid)}"
    yield f"{'switchguid' if switch else 'caguid'}={_bare(device.guid)}" + (
        f"({_hex(device.guid)})" if switch else ""
    )
    if switch:
        lid = f"enhanced port 0 lid {live.lid(device)} lmc 0"
        yield f'Switch\t{device.ports} "{_id(device)}"\t\t# "{device.name}" {lid}'
    else:
        yield f'Ca\t{device.ports} "{_id(device)}"\t\t# "{device.name}"'
    for link in live.links[device.guid]:
        peer = link.peer
        told = f'"{peer.name}" lid {live.lid(peer)} {link.rate}'
        if switch:
            guid = "" if peer.kind == "switch" else f"({_hex(peer.guid)}) "
            yield f'[{link.port}]\t"{_id(peer)}"[{link.peer_port}]{guid}\t\t# {told}'
        else:
            own = f"[{link.port}]({_hex(device.guid)}) "
            yield f'{own}\t"{_id(peer)}"[{link.peer_port}]\t\t# lid {live.lid(device)} lmc 0 {told}'
    yield ""


def _manager(manager: Manager, lid: int, state: int, count: int) -> str:
    return (
        "SMInfoRecord dump:\n"
        "\t\tRID\n"
        f"\t\tLID...................{lid}\n"
        "\t\tSMInfo dump:\n"
        f"\t\tGUID..................0x{manager.guid}\n"
        "\t\tSM_Key................0x0000000000000000\n"
        f"\t\tActCount..............{count % 2**32}\n"
        f"\t\tPriority..............{manager.priority}\n"
        f"\t\tSMState...............{state}\n"
    )


def _id(device: Device) -> str:
    return f"{'S' if device.kind == 'switch' else 'H'}-{device.guid}"


def _bare(guid: str) -> str:
    return f"{int(guid, 16):#x}"


def _hex(guid: str) -> str:
    return f"{int(guid, 16):x}"
