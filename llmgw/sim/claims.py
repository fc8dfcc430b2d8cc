"""Ports and addresses that a demo keeps for itself, so that several of them run on one machine at a time."""

from __future__ import annotations

import random
import socket

from llmgw.config.addresses import join_host_port
from llmgw.config.errors import SentenceError

OTHER_PORTS = range(10000, 20000)
"""Below those of shards (21000 on) and of connections that go out (32768 on, ip(7))."""


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
    """The preferred port of an address of this machine if nobody has it, else another; and the claim on it.

    `preferred` is 0 where none is.

    The others are none of those that the system gives to connections that go out: a port that a server has left
    for a moment (it is killed and started again) would go to a client then, most likely to one that tries to
    reach that server, and which so reaches itself.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    others = random.sample(OTHER_PORTS, len(OTHER_PORTS))
    for wanted in [preferred, *others] if preferred else others:
        claimed = claim(join_host_port(host, wanted))
        if claimed is None:
            continue
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, wanted))
            except OSError:
                claimed.close()
            else:
                return wanted, claimed
    raise ClaimError(f"no TCP port of {host} between {OTHER_PORTS.start} and {OTHER_PORTS.stop - 1} is free")
