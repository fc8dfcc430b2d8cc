"""Two real fabrics and the simulated nodes on them, whose GUIDs are the same in both."""

from __future__ import annotations

from pathlib import Path

from llmgw.sim.fabric.live import look, write_fabric
from llmgw.sim.fabric.plan import ADAPTER_DEVICE, SWITCH_DEVICE, Fabric, plan_fabric
from llmgw.sim.fabric.text import map_text
from llmgw.sim.hardware import write_hardware
from tests.lab.real_fabric import RealFabric, ask_managers, wait_for

ADAPTERS = ["mlx5_0", "mlx5_1"]
# Two nodes share their leaves, and of four the neighbours by name do not.
NODES = {"ib-a": ["node01", "node03", "node02", "node04"], "ib-b": ["node05"]}
NODES_A_UNIT = 2
SETTLED_S = 8.0
ATTEMPTS = 6
_DEVICES = {SWITCH_DEVICE: 0xD2F0, ADAPTER_DEVICE: 0x101B}


class Site:
    """`folder` has the nodes' hardware, where `llmgw demo` would have it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plans: dict[str, Fabric] = {}
        self.fabrics: dict[str, RealFabric] = {}

    def start(self) -> None:
        """Bring both fabrics to life, and wait until each has its master and its standby."""
        for name, nodes in NODES.items():
            for node in nodes:
                write_hardware(self.hardware(node), gpus=8, adapters=2, rate_gbps=200, node=node)
            self.plans[name] = plan = plan_fabric(
                name,
                dict.fromkeys(nodes, ADAPTERS),
                {node: str(self.hardware(node)) for node in nodes},
                slow=name == "ib-a",
                nodes_a_unit=NODES_A_UNIT,
            )
            make_hdr(plan)
            path = self.folder / "fabrics" / f"{name}.json"
            write_fabric(path, plan)
            self.fabrics[name] = fabric = RealFabric(
                self.folder / f"real-{name}", name, self.planned_text(name), self.managers(name)
            )
            for node in nodes:
                fabric.write_tools(self.hardware(node), node)
        for name in NODES:
            self._settle(name)

    def stop(self) -> None:
        for fabric in self.fabrics.values():
            fabric.stop()

    def hardware(self, node: str) -> Path:
        return self.folder / node / "hardware"

    def managers(self, name: str) -> list[str]:
        """The adapters that a fabric's managers sit on, the master first."""
        plan = self.plans[name]
        return [plan.device(manager.guid).name for manager in plan.managers]

    def planned_text(self, name: str) -> str:
        """The map as the simulated tools print it."""
        live = look(self.folder / "fabrics" / f"{name}.json")
        return map_text(live, live.fabric.devices[0], "today")

    def _settle(self, name: str) -> None:
        fabric = self.fabrics[name]
        for attempt in range(ATTEMPTS):
            try:
                what = f"{name} has a master and a standby"
                wait_for(lambda: self._settled(name), what, SETTLED_S, fabric.last_words)
                return
            except AssertionError:
                if attempt == ATTEMPTS - 1:
                    raise
                # A manager that is asked to look while it still does so may forget it.
                fabric.have_them_look()

    def _settled(self, name: str) -> bool:
        told = ask_managers(self.hardware(NODES[name][0]))
        return told.master is not None and len(told.standbys) == 1 and not told.problems


def make_hdr(plan: Fabric) -> None:
    """Make a plan one of HDR, with its slow cable at EDR: ibsim knows no higher speed."""
    for cable in plan.cables:
        cable.full = "4xEDR" if cable.state == "slow" else "4xHDR"
        cable.state = "up"
    for device in plan.devices:
        device.device = _DEVICES.get(device.device, device.device)
