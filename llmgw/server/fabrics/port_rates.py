"""How fast each port sends and receives, from the differences between the counters of its heartbeats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmgw.messages.agent import Port

BYTES_PER_COUNT = 4
"""`port_xmit_data` and `port_rcv_data` count 4-byte words, whatever their name
(Documentation/ABI/stable/sysfs-class-infiniband of the Linux kernel)."""
SATURATED = frozenset({2**32 - 1, 2**64 - 1})
"""Where a counter of 32 or of 64 bits stands still: no difference can be told from it."""
SPAN_MIN_S = 0.5
"""Heartbeats that follow each other faster are taken together: their jitter would be the figure."""
OLD_S = 60.0
"""A rate that nothing has confirmed for so long is unknown."""

Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Rate:
    """Gb/s over the last heartbeat's span; None is unknown."""

    tx_gbps: float | None
    rx_gbps: float | None


@dataclass(slots=True)
class _Seen:
    at: float
    tx: int | None
    rx: int | None
    rate: Rate


class PortRates:
    """The rates of every port of the cluster's own. Times are seconds of one clock that never runs backwards."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[tuple[str, int], _Seen]] = {}

    def take(self, node_id: str, ports: Iterable[Port], now: float) -> None:
        """The ports of one heartbeat; those that are not in it any more are forgotten."""
        before = self._seen.get(node_id, {})
        after: dict[tuple[str, int], _Seen] = {}
        for port in ports:
            key = (port.adapter, port.port)
            tx, rx = _count(port, "port_xmit_data"), _count(port, "port_rcv_data")
            old = before.get(key)
            if old is None:
                after[key] = _Seen(now, tx, rx, Rate(None, None))
            elif now - old.at < SPAN_MIN_S:
                after[key] = old
            else:
                span_s = now - old.at
                after[key] = _Seen(now, tx, rx, Rate(_gbps(old.tx, tx, span_s), _gbps(old.rx, rx, span_s)))
        self._seen[node_id] = after

    def forget(self, node_id: str) -> None:
        """The node was removed."""
        self._seen.pop(node_id, None)

    def rate(self, node_id: str, adapter: str, port: int, now: float) -> Rate:
        """What is known now of a port."""
        seen = self._seen.get(node_id, {}).get((adapter, port))
        return Rate(None, None) if seen is None or now - seen.at > OLD_S else seen.rate


def _count(port: Port, name: str) -> int | None:
    count = port.counters.get(name)
    return None if count in SATURATED else count


def _gbps(before: int | None, after: int | None, span_s: float) -> float | None:
    # A counter that has become less was reset in between, and tells nothing.
    if before is None or after is None or after < before:
        return None
    return round((after - before) * BYTES_PER_COUNT * 8 / span_s / 1e9, 3)
