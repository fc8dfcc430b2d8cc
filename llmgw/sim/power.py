"""Power off a node of a running demo: everything that is it ends at once, as when a machine dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import psutil

from llmgw.config.errors import SentenceError
from llmgw.sim.hardware_files import MARKER, set_power


class PowerError(SentenceError):
    """There is no such demo, or no such node in it."""


def pointer_path() -> Path:
    """Where a running demo says where its state lies."""
    return Path.home() / ".cache" / "llmgw" / "demo.json"


def running_demo(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the demo whose state LLMGW_STATE names, as for `ctl`, else of the last one that was started.

    Raises PowerError.
    """
    named = environ.get("LLMGW_STATE")
    try:
        state = Path(named or json.loads(pointer_path().read_text())["state"])
    except (OSError, ValueError, KeyError, TypeError):
        raise PowerError("no demo runs here; start one with llmgw demo") from None
    folder = state.absolute().parent
    if not any(folder.glob("*/agent.yaml")):
        where = f"LLMGW_STATE is {named}, which is no demo's" if named else "no demo runs here"
        raise PowerError(f"{where}; start one with llmgw demo")
    return folder


def hardware_of(named: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the simulated hardware is that somebody named: its folder, a folder with it, or a node of the running
    demo. What is none of these is given back as it is, for others to refuse."""
    if (named / MARKER).exists():
        return named
    if (named / "hardware" / MARKER).exists():
        return named / "hardware"
    if named.exists() or len(named.parts) != 1:
        return named
    try:
        there = running_demo(environ) / named / "hardware"
    except PowerError:
        return named
    return there if (there / MARKER).exists() else named


def processes_of(folder: Path, node: str) -> dict[int, str]:
    """The node's processes: pid → `agent`, or the shard that an engine process belongs to."""
    config, work = str(folder / node / "agent.yaml"), os.path.realpath(folder / node / "work")
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        try:
            if config in process.cmdline():
                found[process.pid] = "agent"
                continue
            environ = process.environ()
        except (psutil.Error, OSError):
            continue
        if environ.get("LLMGW_WORK_DIR") == work and environ.get("LLMGW_SHARD"):
            found[process.pid] = environ["LLMGW_SHARD"]
    return found


def power_off(folder: Path, node: str) -> list[str]:
    """Kill the agent and all engines of a node; says what was killed. Raises PowerError for an unknown node."""
    if not (folder / node / "agent.yaml").exists():
        known = sorted(path.parent.name for path in folder.glob("*/agent.yaml"))
        raise PowerError(f"the demo has no node {node!r}; its nodes are {', '.join(known)}")
    hardware = folder / node / "hardware"
    if hardware.is_dir():
        set_power(hardware, False)  # its adapters have no light any more, which the fabric sees
    killed: list[str] = []
    # A second look ends what an engine started between the first and its own end.
    for _ in range(2):
        for pid, what in processes_of(folder, node).items():
            try:
                os.kill(pid, signal.SIGKILL)
                killed.append(what)
            except ProcessLookupError:
                pass
    return killed
