"""Choosing ports for engines from the configured range."""

from __future__ import annotations

from collections.abc import Collection

from llmgw.hardware.tcp_ports import is_free


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
