"""Ports for programs that must be told one: given to one test only, and taken by no connection meanwhile."""

from __future__ import annotations

import socket

from llmgw.sim.claims import free_port as claimed_port

_CLAIMS: list[socket.socket] = []
"""Kept for as long as these tests run: a port whose program has ended is nobody else's soon."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody has, nor will have unless told."""
    port, claimed = claimed_port(host, 0)
    _CLAIMS.append(claimed)
    return port
