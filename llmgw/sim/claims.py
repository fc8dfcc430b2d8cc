"""Ports and addresses that a demo keeps for itself, so that several of them run on one machine at a time."""

from __future__ import annotations

import socket

from llmgw.config.addresses import join_host_port
from llmgw.config.errors import SentenceError


class ClaimError(SentenceError):
    """Nothing is left to claim."""


def claim(what: str) -> socket.socket | None:
    """Keep other demos off an address or a port for as long as the socket is open; None when one has it.

    It is a name in the abstract namespace (unix(7)), which belongs to the network namespace like what is claimed.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0llmgw-demo {what}")
    except OSError:
        sock.close()
        return None
    return sock


def free_port(host: str, preferred: int) -> tuple[int, socket.socket]:
    """The preferred port of a loopback address if nobody has it, else any free one; and the claim on it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (preferred, *[0] * 20):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, wanted))
            except OSError:
                continue
            port = int(probe.getsockname()[1])
            claimed = claim(join_host_port(host, port))
            if claimed is not None:
                return port, claimed
    raise ClaimError(f"no TCP port of {host} is free")
