"""Names, addresses and folders of the lab. One at a time has this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATE: Final = Path("/run/llmgw-lab")
"""A tmpfs of its own: the machines' disks, the keys to them, the fabrics' logs. `down` takes all of it away."""
LOCK: Final = Path("/run/llmgw-lab.lock")
FACTS: Final = STATE / "lab.json"
MACHINES: Final = STATE / "machines"
FABRICS: Final = STATE / "fabrics"
SSH: Final = STATE / "ssh"
SSH_CONFIG: Final = SSH / "config"
SSH_KEY: Final = SSH / "id_ed25519"
CACHE: Final = Path(os.environ.get("LLMGW_LAB_CACHE", "/var/cache/llmgw-lab"))

MARK: Final = "LLMGW_LAB"
"""In the environment of every process that `up` starts, and by which `down` finds them."""

SWITCH: Final = "llmgw-lab"
"""The namespace that has the bridge and the fabrics' processes; the machines' are called llmgw-lab-NODE."""
BRIDGE: Final = "lab"
HOST_LINK: Final = "llmgw-lab"
"""The interface by which this machine itself reaches the lab."""

NETWORK: Final = os.environ.get("LLMGW_LAB_NETWORK", "10.77.0")
"""The first three numbers of the lab's addresses."""
HOST_ADDRESS: Final = f"{NETWORK}.1"
FABRIC_ADDRESS: Final = f"{NETWORK}.2"
NOBODY: Final = f"{NETWORK}.3"
"""Where packets go that are to be lost."""
AGENTS_PORT: Final = 8443

SERVER: Final = "server"
HARDWARE: Final = "srv/hardware"
"""A node's simulated hardware, below its root."""
ADAPTERS: Final = ["mlx5_0", "mlx5_1"]


@dataclass(frozen=True)
class Machine:
    """One machine of the lab. `fabric` is None for the control host."""

    name: str
    address: str
    fabric: str | None = None

    @property
    def namespace(self) -> str:
        return f"{SWITCH}-{self.name}"

    @property
    def folder(self) -> Path:
        return MACHINES / self.name

    @property
    def root(self) -> Path:
        """Its file system, as this machine sees it."""
        return self.folder / "root"

    @property
    def hardware(self) -> Path:
        return self.root / HARDWARE


FLEET: Final = {
    machine.name: machine
    for machine in (
        Machine(SERVER, f"{NETWORK}.10"),
        Machine("node01", f"{NETWORK}.11", "ib-a"),
        Machine("node02", f"{NETWORK}.12", "ib-a"),
        Machine("node03", f"{NETWORK}.13", "ib-b"),
        Machine("node04", f"{NETWORK}.14", "ib-b"),
    )
}
FABRIC_PORTS: Final = {"ib-a": 7100, "ib-b": 7300}
"""Fabric → the first port of its ibsim, which takes one more for each client that it may have."""


def nodes_of(fabric: str) -> list[str]:
    """The nodes that are cabled to a fabric."""
    return [machine.name for machine in FLEET.values() if machine.fabric == fabric]
