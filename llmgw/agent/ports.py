"""Choosing ports for engines from the configured range."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection


class NoFreePort(Exception):
    """The range is used up; the message is a sentence."""


def choose_ports(
    count: int, ports: range, address: str, *, held: Collection[int], recent: Collection[int] = ()
) -> list[int]:
    """Choose `count` ports of the range that nothing on `address` listens to and no shard of ours holds.

    Ports in `recent` (of shards that ended lately) come last: a router with an old route would talk to the
    new engine as if it were the old one. Raises NoFreePort. Blocking for at most one bind a port.
    """
    fresh = [port for port in ports if port not in held and port not in recent]
    used = [port for port in ports if port not in held and port in recent]
    chosen: list[int] = []
    for port in fresh + used:
        if len(chosen) == count:
            break
        if is_free(address, port):
            chosen.append(port)
    if len(chosen) < count:
        raise NoFreePort(
            f"{count} free ports are needed on {address} and {ports.start}-{ports.stop - 1} has "
            f"{len(chosen)}; widen supervisor.port_range in agent.yaml"
        )
    return chosen


def is_free(address: str, port: int) -> bool:
    """True when a listener could bind there now. Raises OSError when the address is not this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            # Without SO_REUSEADDR, so that ports with connections in TIME_WAIT are left alone too.
            probe.bind((address, port))
        except OSError as exc:
            if exc.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
