"""Faults of fabrics: cables, subnet managers, names."""

from __future__ import annotations

import asyncio
import time

import httpx

from llmgw.sim.fabric.change import elect, set_cable, stop_manager
from llmgw.sim.hardware import set_port
from llmgw.sim.planted.fault import Fault
from llmgw.sim.planted.site import ANSWERS_S, Site

SPINE_CABLE = ("ib-b-leaf-1", 33)
"""An end of a cable between a leaf and a spine."""


def _two_under_one_name(site: Site) -> None:
    with site.agent_yaml("node06") as config:
        config["fabrics"][0]["name"] = "ib-a"


async def _no_standby(site: Site) -> None:
    stop_manager(site.fabric("ib-a"), "ib-a-sm2")


async def _failover(site: Site) -> None:
    # The cabling is accepted first: that needs a map, and so that its managers are known.
    await _accepted(site, "ib-b")
    stop_manager(site.fabric("ib-b"))
    elect(site.fabric("ib-b"))


async def _managers_die(site: Site) -> None:
    await _known(site, "ib-c")
    for host in ("ib-c-sm2", "ib-c-sm1"):
        stop_manager(site.fabric("ib-c"), host)


async def _cable_out(site: Site) -> None:
    set_cable(site.fabric("ib-b"), *SPINE_CABLE, "down")


async def _port_down(site: Site) -> None:
    replica = await site.replica("demo/pair")
    set_port(site.hardware(replica["nodes"][1]), "mlx5_1", "down")


async def _known(site: Site, name: str) -> None:
    """Wait until the fabric's managers have answered."""
    deadline = time.monotonic() + ANSWERS_S
    while time.monotonic() < deadline:
        if any(each["name"] == name and each["answer"] == "ok" for each in await site.fleet.get("fabrics")):
            return
        await asyncio.sleep(0.3)


async def _accepted(site: Site, name: str) -> None:
    """Accept the fabric's cabling as soon as there is a map of it."""
    deadline = time.monotonic() + ANSWERS_S
    while True:
        try:
            await site.fleet.post(f"fabrics/{name}/accept", {})
            return
        except httpx.HTTPStatusError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)


FAULTS = [
    Fault(name="a cable trains too slowly", check="fabric-cable-slow", where="ib-a"),
    Fault(name="one name for two fabrics", check="fabric-identity", where="ib-a", before=_two_under_one_name),
    Fault(name="no standby subnet manager", check="fabric-no-standby", where="ib-a", running=_no_standby),
    Fault(name="the master dies", check="fabric-master-changed", where="ib-b", running=_failover),
    Fault(name="all managers die", check="fabric-managers-silent", where="ib-c", running=_managers_die),
    Fault(name="a port is unmanaged", check="fabric-ports-unmanaged", where="ib-a"),
    Fault(name="a cable is pulled", check="fabric-cabling-differs", where="ib-b", running=_cable_out),
    Fault(name="a port goes down", check="fabric-port-down", where="mlx5_1", running=_port_down),
    Fault(name="… under a replica of two nodes", check="replica-fabric-down", where="demo/pair"),
    Fault(name="engines talk over TCP", check="fabric-fallback", where="tcp-"),
]
