"""Whether a port is part of a bond: by the network interface that belongs to it, else by the adapter's name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from llmgw.hardware.sysfs import list_names, read_text
from llmgw.messages.agent import Gid

_NAME_CHARS_MAX = 64


def read_bond(ib_root: Path, adapter: str, number: int, gids: Sequence[Gid]) -> str | None:
    """The bond that the interface of a port is, or is in (`bond0`), as far as `ib_root` and the interfaces beside
    it say; `mlx5_bond_0` itself where an adapter is called so and no interface is seen (in a container). None:
    none.

    Files: `master` and `bonding/` of Documentation/networking/bonding.rst; mlx5 names an adapter of two bonded
    ports mlx5_bond_N (drivers/infiniband/hw/mlx5).
    """
    device = ib_root / adapter / "device" / "net"
    named = [gid.netdev for gid in gids if gid.netdev is not None]
    there = list_names(device)
    own = [name for name in there if len(there) == 1 or _is_of_port(device / name, number)]
    for name in dict.fromkeys([*named, *own]):
        if os.sep in name or name in (".", ".."):
            continue
        for interface in (ib_root.parent / "net" / name, device / name):
            if (interface / "bonding").is_dir():
                return name[:_NAME_CHARS_MAX]
            master = interface / "master"
            if (master / "bonding").is_dir():
                return os.path.basename(os.path.realpath(master))[:_NAME_CHARS_MAX]
    return adapter if "bond" in adapter.lower() else None


def _is_of_port(interface: Path, number: int) -> bool:
    """An adapter with several ports has an interface for each; `dev_port` counts them from 0."""
    return read_text(interface / "dev_port") in (None, str(number - 1))
