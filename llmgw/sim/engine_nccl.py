"""What the simulated engine says of its network as NCCL would, and what its simulated adapters carry."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

NcclLog = Literal["ib", "socket", "none"]
NCCL_LOGS: tuple[NcclLog, ...] = ("ib", "socket", "none")
# Some MiB for loading, in words of 4 bytes as the counters count.
WORDS_LOADED = 2**20


def nccl_lines(kind: NcclLog, adapters: Sequence[str], rank: int, nnodes: int) -> list[str]:
    """The lines of one rank, in NCCL's own words (2.2x with NCCL_DEBUG=INFO, subsystems INIT and NET)."""
    if kind == "none":
        return []
    if kind == "ib":
        found = "".join(f" [{index}]{adapter}/IB" for index, adapter in enumerate(adapters)) or " [0]mlx5_0:1/IB"
        said = [f"NET/IB : Using{found} [RO]; OOB eth0:127.0.0.1<0>", "Using network IB"]
    else:
        said = ["NET/IB : No device found.", "NET/Socket : Using [0]eth0:127.0.0.1<0>", "Using network Socket"]
    way = "NET/IB/0/GDRDMA" if kind == "ib" else "NET/Socket/0"
    before, after = (rank - 1) % nnodes, (rank + 1) % nnodes
    said += [
        f"Channel 00/0 : {before}[0] -> {rank}[0] [receive] via {way}",
        f"Channel 00/0 : {rank}[0] -> {after}[0] [send] via {way}",
    ]
    pid = os.getpid()
    return [f"{socket.gethostname()}:{pid}:{pid} [0] NCCL INFO {line}" for line in said]


def adapters_of(nccl_ib_hca: str) -> list[str]:
    """`=mlx5_0:1,mlx5_1:1`, as the variable NCCL_IB_HCA is given to the engine → the ports."""
    return [part for part in nccl_ib_hca.removeprefix("=").split(",") if part]


def carry(hardware: str, adapters: Sequence[str], words: int = WORDS_LOADED) -> None:
    """Count so much on each port of a simulated node. Raises OSError or ValueError for a damaged one."""
    for adapter in adapters:
        name, _, port = adapter.partition(":")
        for counter in ("port_xmit_data", "port_rcv_data"):
            path = Path(hardware) / "ib" / name / "ports" / (port or "1") / "counters" / counter
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            beside.write_text(f"{int(path.read_text()) + words}\n")
            os.replace(beside, path)
