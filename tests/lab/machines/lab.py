"""The lab as a whole: up, down, and how it is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.lab.machines import fabrics, network
from tests.lab.machines.base import make_base
from tests.lab.machines.errors import LabError
from tests.lab.machines.machine import (
    boot,
    cut_power,
    is_on,
    make_disk,
    make_keys,
    wait_for_ssh,
)
from tests.lab.machines.needs import missing
from tests.lab.machines.places import FABRIC_PORTS, FACTS, FLEET, LOCK, STATE, SWITCH, Machine
from tests.lab.machines.processes import end, groups, pids_of, remove_groups, run

Tell = Callable[[str], None]


def up(tell: Tell) -> None:
    """Bring up fabrics and machines; every machine answers by ssh then. Raises LabError, leaving nothing."""
    _need()
    with _alone():
        if leftovers():
            raise LabError("A lab is up on this machine, or what is left of one: scripts/lab down takes it away")
        folder = make_base(tell)
        try:
            _up(folder)
        except BaseException:
            _down()
            raise


def _up(base: Path) -> None:
    STATE.mkdir(mode=0o700)
    run("mount", "-t", "tmpfs", "-o", "size=60%,mode=0700", "llmgw-lab", str(STATE), what="Mounting the disks")
    FACTS.write_text(json.dumps({"pid": os.getpid(), "since": time.time()}))
    network.make_switch()
    make_keys()
    with ThreadPoolExecutor() as pool:

        def bring_up(machine: Machine) -> None:
            make_disk(machine, base)
            if machine.fabric is not None:
                fabrics.write_tools(machine.name)
            boot(machine)

        booted = [pool.submit(bring_up, machine) for machine in FLEET.values()]
        # A fabric looks at its nodes' adapters, which lie on their disks.
        for made in booted:
            made.result()
        rest = [
            *(pool.submit(fabrics.start_fabric, name) for name in FABRIC_PORTS),
            *(pool.submit(wait_for_ssh, machine) for machine in FLEET.values()),
        ]
        for made in rest:
            made.result()


def base(tell: Tell) -> Path:
    """The folder of what machines are made from, built where it is not there. Raises LabError."""
    _need()
    return make_base(tell)


def down() -> bool:
    """Take the lab away, whatever is left of it; False when there was nothing. Raises LabError."""
    _need()
    with _alone():
        found = bool(leftovers())
        _down()
        left = leftovers()
        if left:
            raise LabError(f"The lab could not be taken away whole; left: {'; '.join(left)}")
        return found


def _down() -> None:
    for machine in FLEET.values():
        # Their ssh connections are among them.
        end(machine.name, machine.namespace)
    end(None, SWITCH)
    for pid in _users_of_state():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    remove_groups()
    for machine in FLEET.values():
        network.remove_machine(machine)
    network.remove_switch()
    for place in reversed(_mounts()):
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
    if STATE.is_dir():
        with contextlib.suppress(OSError):
            STATE.rmdir()


def leftovers() -> list[str]:
    """What there is of a lab, in words; empty when there is none."""
    found = [f"process {pid}" for pid in pids_of()]
    found += [f"mount {place}" for place in _mounts()]
    found += [
        f"namespace {name}"
        for name in (SWITCH, *(machine.namespace for machine in FLEET.values()))
        if network.exists(name)
    ]
    found += [f"control group {place}" for place in groups()]
    if STATE.exists():
        found.append(f"folder {STATE}")
    if Path("/sys/class/net", network.HOST_LINK).exists():
        found.append(f"interface {network.HOST_LINK}")
    return found


def status() -> dict[str, Any]:
    """How the lab is: machines with address, fabric, power and cable; managers by fabric."""
    return {
        "up": FACTS.exists(),
        "since": json.loads(FACTS.read_text())["since"] if FACTS.exists() else None,
        "machines": [
            {
                "name": machine.name,
                "address": machine.address,
                "fabric": machine.fabric,
                "power": "on" if is_on(machine) else "off",
                "network": network.state_of(machine),
            }
            for machine in FLEET.values()
        ],
        "managers": [
            {"name": name, "fabric": fabric, "state": fabrics.state_of(name)}
            for name, fabric in fabrics.MANAGERS.items()
        ],
    }


def kill(name: str) -> None:
    """Cut a machine's power, or kill a subnet manager. Raises LabError."""
    with _running():
        if name in fabrics.MANAGERS:
            fabrics.kill_manager(name)
        else:
            cut_power(_machine(name))


def power_on(name: str) -> None:
    """Boot a machine whose power was cut, or start a subnet manager again. Raises LabError."""
    with _running():
        if name in fabrics.MANAGERS:
            fabrics.start_manager(name)
        else:
            boot(_machine(name))
            wait_for_ssh(_machine(name))


def cut(name: str, from_server: bool = False) -> None:
    """Cut a machine's network: all of it, or what its agent and the server say to each other. Raises LabError."""
    with _running():
        machine = _machine(name)
        if network.state_of(machine) != "up":
            raise LabError(f"{name} is cut off or has no power: scripts/lab status, scripts/lab heal {name}")
        if not from_server:
            network.unplug(machine)
        elif machine.fabric is None:
            raise LabError(f"{name} has no agent whose link could be cut; name a node")
        else:
            network.cut_from_server(machine)


def heal(name: str) -> None:
    """Give a machine its network back. Raises LabError."""
    with _running():
        machine = _machine(name)
        if network.state_of(machine) == "none":
            raise LabError(f"{name} has no power: scripts/lab boot {name}")
        network.plug_again(machine)


def _machine(name: str) -> Machine:
    if name not in FLEET:
        names = ", ".join([*FLEET, *fabrics.MANAGERS])
        raise LabError(f"There is no {name!r} in the lab; it has {names}")
    return FLEET[name]


def _need() -> None:
    reason = missing()
    if reason is not None:
        raise LabError(reason)


@contextlib.contextmanager
def _running() -> Iterator[None]:
    _need()
    with _alone():
        if not FACTS.exists():
            raise LabError("No lab is up: scripts/lab up")
        yield


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """While something is changed nobody else changes anything."""
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError("Another scripts/lab is at work on this machine; wait until it is done") from None
        yield


def _mounts() -> list[str]:
    """What is mounted at or below the lab's folder, in the order of mounting."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in places if place == str(STATE) or place.startswith(f"{STATE}/")]


def _users_of_state() -> list[int]:
    """Shared ssh connections, which have this machine's namespace and no mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if f"{STATE}/ssh/".encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]
