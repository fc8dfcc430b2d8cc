"""What a simulated adapter's port has carried: its data and packet counters, which several processes may move."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

PACKET_WORDS = 1024
"""Large messages: packets carry 4096 bytes."""


def carry(hardware: str | Path, adapter: str, *, sent_words: int, received_words: int) -> None:
    """Count so many words of 4 bytes on a port of a simulated node: `mlx5_0`, or `mlx5_0:1`.

    Nothing is lost when several processes count at a time, and a port that is not ACTIVE carries nothing. Raises
    OSError or ValueError for a damaged node.
    """
    name, _, port = adapter.partition(":")
    folder = Path(hardware) / "ib" / name / "ports" / (port or "1") / "counters"
    if not (folder.parent / "state").read_text(encoding="ascii").startswith("4:"):
        return
    moved: Mapping[str, int] = {
        "port_xmit_data": sent_words,
        "port_rcv_data": received_words,
        "port_xmit_packets": sent_words // PACKET_WORDS,
        "port_rcv_packets": received_words // PACKET_WORDS,
        "unicast_xmit_packets": sent_words // PACKET_WORDS,
        "unicast_rcv_packets": received_words // PACKET_WORDS,
    }
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for counter, words in moved.items():
            if words:
                path = folder / counter
                beside = path.with_name(f".{counter}.{os.getpid()}")
                beside.write_text(f"{int(path.read_text()) + words}\n")
                os.replace(beside, path)
    finally:
        os.close(descriptor)
