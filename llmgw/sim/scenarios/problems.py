"""problems: a fault of every kind is planted, and each must stand at the top of /admin with its remedy."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.planted.every import FAULTS, plant_in_running
from llmgw.sim.planted.fault import Fault
from llmgw.sim.planted.shown import item_tells, overview_items, status_tells, status_text
from llmgw.sim.planted.site import OPTIONS, Site
from llmgw.sim.scenarios.judge import Judge

__all__ = ["OPTIONS", "problems"]

NODES_S_MAX = 60.0
FOUND_S_MAX = 90.0
SHOWN_S_MAX = 15.0
TABLE_CELLS_MIN = 120


async def problems(fleet: DemoFleet, judge: Judge) -> None:
    """Plant everything, wait until all of it is found, and read the page and `ctl status` as a person does."""
    site = Site(fleet)
    try:
        if not await judge.wait("every node registers", NODES_S_MAX, lambda: _registered(fleet)):
            return
        judge.tell(f"{len(fleet.nodes)} nodes are there; planting {len(FAULTS)} faults")
        await plant_in_running(site)
        judge.tell("all faults are planted")
        await _wait_found(fleet, judge)
        shown = await _wait_shown(fleet)
    finally:
        await site.close()
    _print_table(shown)
    for fault, (finding, on_page, in_status) in shown.items():
        judge.expect(finding is not None, f"{fault.name}: {fault.check} is found")
        if finding is not None:
            judge.expect(bool(finding["remedy"]), f"{fault.name}: {fault.check} has a remedy")
            judge.expect(on_page, f"{fault.name}: it stands at the top of /admin with its remedy")
            judge.expect(in_status, f"{fault.name}: it stands in ctl status with its remedy")
    judge.facts["faults"] = [
        {
            "fault": fault.name,
            "check": fault.check,
            "finding": finding,
            "on_page": on_page,
            "in_status": in_status,
        }
        for fault, (finding, on_page, in_status) in shown.items()
    ]


Shown = tuple[dict[str, Any] | None, bool, bool]
"""The finding that tells of a fault, whether the page has it, and whether `ctl status` has."""


async def _registered(fleet: DemoFleet) -> bool:
    nodes = await fleet.get("nodes")
    return len(nodes) == len(fleet.nodes) and all(node["state"] == "ready" for node in nodes)


async def _findings(fleet: DemoFleet) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await fleet.get("server"))["problems"]
    return found


async def _wait_found(fleet: DemoFleet, judge: Judge) -> None:
    """Until each fault is told of, or the time is over; tells each as it comes."""
    deadline = time.monotonic() + FOUND_S_MAX
    missing = list(FAULTS)
    while missing and time.monotonic() < deadline:
        findings = await _findings(fleet)
        for fault in list(missing):
            if any(fault.told_by(finding) for finding in findings):
                missing.remove(fault)
                judge.tell(f"  {fault.check}: {fault.name}")
        await asyncio.sleep(0.5)


async def _wait_shown(fleet: DemoFleet) -> dict[Fault, Shown]:
    """What page and command tell, read until both have all: findings come and go while one of them is read."""
    deadline = time.monotonic() + SHOWN_S_MAX
    while True:
        findings = await _findings(fleet)
        items, text = await overview_items(fleet), await status_text(fleet)
        shown = {fault: _shown(fault, findings, items, text) for fault in FAULTS}
        if all(all(parts) for parts in shown.values()) or time.monotonic() > deadline:
            return shown
        await asyncio.sleep(1.0)


def _shown(fault: Fault, findings: list[dict[str, Any]], items: list[str], status: str) -> Shown:
    telling = [finding for finding in findings if fault.told_by(finding)]
    for finding in telling:
        on_page = any(item_tells(item, finding) for item in items)
        in_status = status_tells(status, finding)
        if on_page and in_status:
            return finding, on_page, in_status
    if not telling:
        return None, False, False
    return telling[0], any(item_tells(item, telling[0]) for item in items), status_tells(status, telling[0])


def _print_table(shown: dict[Fault, Shown]) -> None:
    console = Console()
    console.width = max(TABLE_CELLS_MIN, console.width)
    table = Table("fault", "finding", "remedy", show_lines=True)
    for fault, (finding, _, _) in shown.items():
        if finding is None:
            table.add_row(Text(fault.name), Text(f"{fault.check} is missing", "red"), "")
        else:
            told = f"{finding['check']} ({finding['severity']})\n{finding['where']}: {finding['what']}"
            table.add_row(Text(fault.name), Text(told), Text(finding["remedy"]))
    console.print(table)
