"""The two fabrics: an ibsim with two OpenSM each, and the real tools of the nodes that are cabled to it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from llmgw.sim.fabric.live import look, write_fabric
from llmgw.sim.fabric.plan import Fabric, plan_fabric
from llmgw.sim.fabric.text import map_text
from tests.lab.machines.errors import LabError
from tests.lab.machines.needs import PATH
from tests.lab.machines.places import (
    ADAPTERS,
    FABRIC_ADDRESS,
    FABRIC_PORTS,
    FABRICS,
    FLEET,
    SWITCH,
    nodes_of,
)
from tests.lab.machines.processes import end, pids_of, remove_groups, start
from tests.lab.real_fabric import OPENSM_SETTINGS, UMAD2SIM, has_decided, tool_text
from tests.lab.site import make_hdr

START_S = 60.0
MANAGERS = {f"{fabric}-sm{number}": fabric for fabric in FABRIC_PORTS for number in (1, 2)}
"""Manager → its fabric; the first of two is master."""


def start_fabric(name: str) -> None:
    """Bring a fabric to life: its simulator and both managers; returns when one is master. Raises LabError."""
    folder = FABRICS / name
    folder.mkdir(parents=True)
    plan = _plan(name)
    path = folder / "fabric.json"
    write_fabric(path, plan)
    live = look(path)
    (folder / "net").write_text(map_text(live, live.fabric.devices[0], "today"))
    # Its console: an ibsim whose input ends never rests, so it holds the other end itself.
    console = folder / "console"
    os.mkfifo(console, 0o600)
    descriptor = os.open(console, os.O_RDWR)
    try:
        start(
            name,
            [*_inside(), _which("ibsim"), "-s", "-r", "-l", str(FABRIC_PORTS[name]), str(folder / "net")],
            folder / "ibsim.log",
            stdin=descriptor,
        )
    finally:
        os.close(descriptor)
    _wait_until_listens(name)
    for manager, of in MANAGERS.items():
        if of == name:
            start_manager(manager)


def start_manager(name: str) -> None:
    """Start an OpenSM, and wait until it is master or standby. Raises LabError."""
    if pids_of(name):
        raise LabError(f"{name} runs; scripts/lab kill {name} ends it")
    fabric = MANAGERS[name]
    folder = FABRICS / fabric / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "opensm.conf").write_text(OPENSM_SETTINGS)
    number = int(name[-1])
    start(
        name,
        [
            *_inside(),
            *(_which("opensm"), "-F", str(folder / "opensm.conf"), "-f", str(folder / "log")),
            *("-p", str(16 - 2 * number)),
        ],
        folder / "output",
        env={
            "SIM_HOST": _adapters(fabric)[number - 1],
            "LD_PRELOAD": str(UMAD2SIM),
            "OSM_TMP_DIR": str(folder),
            "OSM_CACHE_DIR": str(folder),
            **_simulator(fabric),
        },
    )
    deadline = time.monotonic() + START_S
    while not has_decided(folder / "log"):
        if time.monotonic() > deadline:
            raise LabError(f"{name} became neither master nor standby within {START_S:g} s: see {folder / 'log'}")
        time.sleep(0.05)
    # A master lists those that it finds when it looks at the whole fabric, which this signal has it do.
    for other, of in MANAGERS.items():
        if of == fabric:
            for pid in pids_of(other):
                os.kill(pid, signal.SIGHUP)


def kill_manager(name: str) -> None:
    """End an OpenSM: it hands nothing over, and answers nothing any more. Raises LabError."""
    # One that SIGKILL ends does not leave the simulator, whose library then has its standby wait for ever.
    deadline = time.monotonic() + START_S
    while (pids := pids_of(name)) and time.monotonic() < deadline:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)
    end(name)
    remove_groups(name)


def write_tools(node: str) -> None:
    """Give a node Debian's saquery and ibnetdiscover, that see its own adapters on its fabric."""
    machine = FLEET[node]
    assert machine.fabric is not None
    for program in ("saquery", "ibnetdiscover"):
        path = machine.root / "usr/local/sbin" / program
        path.write_text(tool_text(node, _simulator(machine.fabric), Path("/tmp"), Path("/usr/sbin", program)))
        path.chmod(0o755)


def state_of(name: str) -> str:
    """What a manager last said that it is."""
    if not pids_of(name):
        return "stopped"
    try:
        said = (FABRICS / MANAGERS[name] / name / "log").read_text(errors="replace")
    except OSError:
        return "starting"
    master, standby = said.rfind("Entering MASTER state"), said.rfind("Entering STANDBY state")
    if master == standby:
        return "starting"
    return "master" if master > standby else "standby"


def _plan(name: str) -> Fabric:
    nodes = nodes_of(name)
    plan = plan_fabric(
        name,
        dict.fromkeys(nodes, ADAPTERS),
        {node: str(FLEET[node].hardware) for node in nodes},
        slow=False,
    )
    make_hdr(plan)
    return plan


def _adapters(fabric: str) -> list[str]:
    plan = look(FABRICS / fabric / "fabric.json").fabric
    return [plan.device(manager.guid).name for manager in plan.managers]


def _simulator(fabric: str) -> dict[str, str]:
    return {"IBSIM_SERVER_NAME": FABRIC_ADDRESS, "IBSIM_SERVER_PORT": str(FABRIC_PORTS[fabric])}


def _inside() -> list[str]:
    return ["ip", "netns", "exec", SWITCH]


def _wait_until_listens(name: str) -> None:
    """Until its datagram socket for newcomers is there (proc(5), net/udp: the local port in hexadecimal)."""
    wanted = f":{FABRIC_PORTS[name]:04X} "
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for pid in pids_of(name):
            try:
                if wanted in Path(f"/proc/{pid}/net/udp").read_text():
                    return
            except OSError:
                pass
        time.sleep(0.05)
    raise LabError(f"The simulator of {name} does not listen: see {FABRICS / name / 'ibsim.log'}")


def _which(name: str) -> str:
    found = shutil.which(name, path=PATH)
    assert found is not None
    return found
