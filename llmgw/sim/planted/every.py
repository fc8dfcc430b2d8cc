"""All faults, in the order in which they are planted."""

from __future__ import annotations

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.planted.fault import Fault
from llmgw.sim.planted.on_fabrics import FAULTS as ON_FABRICS
from llmgw.sim.planted.on_nodes import FAULTS as ON_NODES
from llmgw.sim.planted.on_server import FAULTS as ON_SERVER
from llmgw.sim.planted.site import Site

FAULTS: list[Fault] = [*ON_FABRICS, *ON_NODES, *ON_SERVER]


def plant_in_files(fleet: DemoFleet) -> None:
    """What stands in files before anything runs."""
    site = Site(fleet)
    for fault in FAULTS:
        if fault.before is not None:
            fault.before(site)


async def plant_in_running(site: Site) -> None:
    """What is done to a fleet that serves."""
    for fault in FAULTS:
        if fault.running is not None:
            await fault.running(site)
