"""What the simulated engine says of its network as NCCL would, and what its simulated adapters carry."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Literal

from llmgw.sim.hardware_traffic import carry

NcclLog = Literal["ib", "socket", "none"]
NCCL_LOGS: tuple[NcclLog, ...] = ("ib", "socket", "none")
# Some MiB for loading, in words of 4 bytes as the counters count.
WORDS_LOADED = 2**20
# A model of 80 layers, 8192 wide, in 16 bits, split over the nodes: two sums of one vector a layer and token.
WORDS_A_TOKEN = 80 * 2 * 8192 * 2 // 4


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


class Traffic:
    """What the fabric's ports of one shard carry: loading, and then every token that the replica makes."""

    def __init__(self, hardware: str, adapters: Sequence[str]) -> None:
        self._hardware = hardware
        self._adapters = list(adapters)
        self._tokens = 0

    def load(self) -> None:
        """Count what loading moves. Raises OSError or ValueError for damaged hardware."""
        self._carry(WORDS_LOADED)

    def up_to(self, tokens: int) -> None:
        """Count the tokens since the last time. Raises OSError or ValueError for damaged hardware."""
        new, self._tokens = tokens - self._tokens, tokens
        if new > 0 and self._adapters:
            self._carry(new * WORDS_A_TOKEN // len(self._adapters))

    def _carry(self, words: int) -> None:
        for adapter in self._adapters:
            carry(self._hardware, adapter, sent_words=words, received_words=words)
