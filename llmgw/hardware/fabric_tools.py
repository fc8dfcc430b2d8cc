"""What a node needs to ask its InfiniBand fabric: infiniband-diags, and the device files that it talks through.

Looks at files and starts nothing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from llmgw.config.agent import AgentConfig
from llmgw.hardware.machine import machine_root
from llmgw.hardware.sysfs import list_names, read_text
from llmgw.messages.agent import Port
from llmgw.messages.findings import Finding

# Where distributions put them, and what the PATH of others than root often lacks.
_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
_INSTALL = "apt-get install infiniband-diags (dnf install infiniband-diags)"
_WHY = (
    "This node cannot say how its fabric is cabled and who manages it; where no other node of the fabric can "
    "either, there is no map"
)

Problem = tuple[str, str]
"""(what is wrong, what to do)."""


def find_tool(program: str) -> str | None:
    """The path of a tool that is named as in agent.yaml; None for a bare name that is nowhere."""
    return program if os.sep in program else shutil.which(program) or shutil.which(program, path=_SYSTEM_FOLDERS)


def tool_problem(program: str, key: str) -> Problem | None:
    """What keeps a tool from being started; None when nothing is seen. `key` is its place in agent.yaml."""
    path = find_tool(program)
    if path is None:
        return f"{program} is not installed (it is neither on PATH nor in /usr/sbin)", _INSTALL
    if not os.path.exists(path):
        return f"{path} does not exist", f"correct {key} in agent.yaml, or {_INSTALL}"
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        return (
            f"{path} is not a program that this user may run",
            f"chmod a+rx {path}, or correct {key} in agent.yaml",
        )
    return None


def device_problem(
    root: Path | None, adapter: str, port: int, *, may_open: Callable[[Path], bool] | None = None
) -> Problem | None:
    """What keeps a tool from talking to the fabric behind a port: its management device is not there, or not for
    this user. None when nothing is seen, also on what is no whole machine.

    Which device is whose: Documentation/infiniband/user_mad.rst of the Linux kernel. They are root's alone
    unless a udev rule says otherwise. Without this look saquery's only words would be "No SM/SA found".
    """
    if root is None:
        return None
    devices = root / "sys" / "class" / "infiniband_mad"
    names = [name for name in list_names(devices) if re.fullmatch(r"umad[0-9]{1,4}", name)]
    if not names:
        # Simulated machines may have none.
        if root != Path("/"):
            return None
        return (
            "the kernel offers no /dev/infiniband/umad* (its module ib_umad is not loaded)",
            "modprobe ib_umad, and name it in /etc/modules-load.d",
        )
    own = (adapter, str(port))
    name = next(
        (n for n in names if (read_text(devices / n / "ibdev"), read_text(devices / n / "port")) == own), None
    )
    if name is None:
        return None
    device = root / "dev" / "infiniband" / name
    if not device.exists():
        return (
            f"there is no /dev/infiniband/{name}, through which {adapter} port {port} is asked",
            "look at udev; in a container: --device=/dev/infiniband",
        )
    if not (may_open or _may_open)(device):
        return (
            f"this user may not open /dev/infiniband/{name}, through which {adapter} port {port} is asked",
            'run the agent as root, or allow its group with a udev rule: KERNEL=="umad*", GROUP="…", MODE="0660"',
        )
    return None


def fabric_tool_findings(config: AgentConfig, ports: Sequence[Port]) -> list[Finding]:
    """What keeps this node from asking its declared InfiniBand fabrics; nothing where it has none."""
    declared = {hca for fabric in config.fabrics for hca in fabric.hcas}
    own = [
        port
        for port in ports
        if port.link_layer == "InfiniBand" and declared & {port.adapter, f"{port.adapter}:{port.port}"}
    ]
    if not own:
        return []
    discovery = config.discovery
    tools = {"discovery.ibnetdiscover": discovery.ibnetdiscover, "discovery.saquery": discovery.saquery}
    findings = [
        _finding("fabric-tools", os.path.basename(program), problem)
        for key, program in tools.items()
        if (problem := tool_problem(program, key)) is not None
    ]
    root = machine_root(Path(discovery.ib_root))
    problems = [device_problem(root, port.adapter, port.port) for port in own]
    shut = list(dict.fromkeys(problem for problem in problems if problem is not None))
    # One of them is enough to ask a fabric, and each says the same of another device.
    if shut and None not in problems:
        findings.append(_finding("fabric-access", "/dev/infiniband", shut[0]))
    return findings


def _finding(check: str, where: str, problem: Problem) -> Finding:
    what, remedy = problem
    return Finding(check=check, severity="warning", where=where, what=what, why=_WHY, remedy=remedy)


def _may_open(device: Path) -> bool:
    return os.access(device, os.R_OK | os.W_OK)
