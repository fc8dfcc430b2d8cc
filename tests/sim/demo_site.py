"""The fabrics and nodes of a demo, without its processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from llmgw.hardware.ports import read_ports
from llmgw.messages.agent import Port
from llmgw.sim.demo_files import write_fabrics
from llmgw.sim.fabric.programs import write_tools
from llmgw.sim.hardware import write_hardware

NODES = {"node01": "ib-a", "node02": "ib-a", "node03": "ib-b", "node04": "ib-b"}
ADDRESS = "127.0.0.1"


class DemoSite:
    """`folder` looks as a demo's does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_fabrics(folder, {node: (ADDRESS, fabric) for node, fabric in NODES.items()})
        for node in NODES:
            hardware = write_hardware(self.hardware(node), gpus=1, adapters=2, rate_gbps=400, node=node)
            write_tools(hardware.directory, self.fabric(NODES[node]), ADDRESS)
            (folder / node / "agent.yaml").write_text("")

    def hardware(self, node: str) -> Path:
        return self.folder / node / "hardware"

    def fabric(self, name: str) -> Path:
        return self.folder / "fabrics" / f"{name}.json"

    def ports(self, node: str) -> list[Port]:
        return read_ports(self.hardware(node) / "ib")

    def run(self, node: str, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = self.hardware(node) / tool
        return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20, check=False)
