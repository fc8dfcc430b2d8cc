"""Choosing ports for engines from the configured range."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice

from llmgw.hardware.tcp_ports import is_free

FREE_COUNTED_MAX = 64


class NoFreePort(Exception):
    """The range is used up; the message is a sentence."""


@dataclass(frozen=True, kw_only=True)
class PortsWanted:
    """What a shard needs: one to serve on, one to meet its workers at, and so many for its engine's own ends."""

    http: bool = False
    rendezvous: bool = False
    extra: int = 0

    @property
    def count(self) -> int:
        return self.http + self.rendezvous + self.extra


@dataclass(frozen=True, kw_only=True)
class Ports:
    """What it was given."""

    http: int | None = None
    rendezvous: int | None = None
    extra: list[int] = field(default_factory=list)


def choose_ports(
    wanted: PortsWanted, ports: range, address: str, *, held: Collection[int], recent: Collection[int] = ()
) -> Ports:
    """Choose ports of the range that nothing listens to and no shard of ours holds.

    Those for rendezvous and the engine's own ends must be free on every address of the machine: engines bind
    them to all, whatever they are told (measured: vLLM's TCPStore). Ports in `recent` (of shards that ended
    lately) come last: a router with an old route would talk to the new engine as if it were the old one. Raises
    NoFreePort. Blocking for at most two binds a port.
    """
    free = _free(ports, address, held, recent)
    http = next(free, None) if wanted.http else None
    inner = list(islice(_free_everywhere(free, address), wanted.count - wanted.http))
    found = (http is not None) + len(inner)
    if found < wanted.count:
        raise NoFreePort(
            f"{wanted.count} free ports are needed on {address} and {ports.start}-{ports.stop - 1} has "
            f"{found}; widen supervisor.port_range in agent.yaml"
        )
    return Ports(
        http=http,
        rendezvous=inner[0] if wanted.rendezvous else None,
        extra=inner[1:] if wanted.rendezvous else inner,
    )


def count_free(ports: range, address: str, *, held: Collection[int]) -> int | None:
    """How many ports of the range a new shard could be given, counted up to 64; None when it cannot be known."""
    count = 0
    try:
        for _ in _free(ports, address, held, ()):
            count += 1
            if count == FREE_COUNTED_MAX:
                break
    except OSError:
        return None  # the address is not this machine's (any more)
    return count


def _free(ports: range, address: str, held: Collection[int], recent: Collection[int]) -> Iterator[int]:
    for late in (False, True):
        for port in ports:
            if port not in held and (port in recent) is late and is_free(address, port):
                yield port


def _free_everywhere(ports: Iterator[int], address: str) -> Iterator[int]:
    wildcard = "::" if ":" in address else "0.0.0.0"
    return (port for port in ports if is_free(wildcard, port))
