"""A fleet for tests of fabrics: three idle nodes on one fabric and one on another, with a perftest on each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from llmgw.sim.demo_fleet import DemoFleet
from tests.endtoend.conftest import Running, RunningFleet, edited, until
from tests.perftest import Perftest

NODES = {
    "node01": ("127.0.0.11", "ib-a"),
    "node02": ("127.0.0.12", "ib-a"),
    "node03": ("127.0.0.13", "ib-a"),
    "node04": ("127.0.0.14", "ib-b"),
}


class FabricFleet(RunningFleet):
    """`server` is what stands in server.yaml beside the demo's own."""

    def __init__(self, folder: Path, *, server: dict[str, Any] | None = None, **options: Any) -> None:
        self.perftests: dict[str, Perftest] = {}

        def adjust(demo: DemoFleet) -> None:
            for node in demo.nodes:
                home = demo.folder / node
                with edited(home / "agent.yaml") as config:
                    self.perftests[node] = Perftest(home / "perftest", Path(config["discovery"]["ib_root"]))
                    config["discovery"]["ib_write_bw"] = str(self.perftests[node].path)
            with edited(demo.folder / "server.yaml") as config:
                config.update(server or {})

        options = {"nodes": NODES, "replicas_big": 0, "replicas_small": 0, **options}
        super().__init__(folder, adjust=adjust, **options)
        self.wait_nodes()

    def wait_nodes(self) -> None:
        """Until all of them are there."""
        until(lambda: {node["state"] for node in self.get("nodes")} == {"ready"}, 30, self.story)

    def no_faults(self) -> None:
        """From now on all is well."""
        for perftest in self.perftests.values():
            perftest.faults()

    def running(self) -> list[int]:
        """Pids of all ends that live, on all nodes."""
        return [pid for perftest in self.perftests.values() for pid in perftest.running()]

    def ctl_running(self, *arguments: str, log: Path) -> Running:
        """`llmgw ctl …` that goes on beside the test."""
        env = {"LLMGW_STATE": str(self.demo.state), "NO_COLOR": "1", "COLUMNS": "200"}
        return Running([sys.executable, "-m", "llmgw", "ctl", *arguments], log, env=env)
