"""What ports report from heartbeat to heartbeat: every change, and error counters that move. Pure.

Bounded by the ports that nodes have; what has changed waits here until it is drained.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from llmgw.messages.agent import Inventory, Port
from llmgw.server.store.fabric_records import FabricChange

PENDING_MAX = 10_000
"""Changes that wait to be drained; the oldest go first."""
WINDOW_S = 3600.0
"""Errors count for so long."""
ERROR_COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
)
"""Of `ports/N/counters` (Documentation/ABI/stable/sysfs-class-infiniband): those that move on a bad link only."""

Place = tuple[str, int]
"""Adapter and port of a node."""


@dataclass(slots=True)
class _Seen:
    """A port as it was last reported."""

    state: str | None = None
    sm_lid: int | None = None
    rate_gbps: float | None = None
    """The last that was known: a port that is down has none."""
    counters: dict[str, int] = field(default_factory=dict)
    moved_at: dict[str, float] = field(default_factory=dict)
    """Error counter → when it last grew."""
    name: str | None = None
    """The fabric that it was last offered on."""
    there: bool = True


class PortWatch:
    """Every node's ports. `version` grows with whatever may matter to placement."""

    def __init__(self) -> None:
        self.version = 0
        self.fleet_version = 0
        """Grows when nodes, ports or offers come or go."""
        self._nodes: dict[str, dict[Place, _Seen]] = {}
        self._offers: dict[str, list[tuple[str, bool, tuple[str, ...]]]] = {}
        self._pending: deque[tuple[Port, FabricChange]] = deque(maxlen=PENDING_MAX)

    def take(self, node_id: str, inventory: Inventory, now: float) -> None:
        """A node has reported its ports. `now` is seconds since the epoch."""
        known = self._nodes.get(node_id)
        seen = self._nodes.setdefault(node_id, {})
        offers = [(offer.name, offer.usable, tuple(offer.adapters)) for offer in inventory.fabrics]
        if self._offers.get(node_id) != offers:
            self._offers[node_id] = offers
            self.fleet_version += 1
            self.version += 1
        names = {adapter: name for name, usable, adapters in offers if usable for adapter in adapters}
        reported = {(port.adapter, port.port): port for port in inventory.ports}
        for place, port in reported.items():
            before = seen.get(place)
            if before is None:
                before = seen[place] = _Seen(port.state, port.sm_lid, port.rate_gbps)
                self.fleet_version += 1
                self.version += 1
                if known is not None:
                    self._note(node_id, port, before, now, "port new", "is new", None, port.state)
            before.name = names.get(f"{port.adapter}:{port.port}", before.name)
            self._compare(node_id, before, port, now)
        for place in seen.keys() - reported.keys():
            if seen[place].there:
                seen[place].there = False
                gone = Port(adapter=place[0], port=place[1])
                self._note(node_id, gone, seen[place], now, "port gone", "is gone", seen[place].state, None)

    def drain(self) -> list[tuple[Port, FabricChange]]:
        """What has changed since the last time, oldest first, each with its port as it was then."""
        changes = list(self._pending)
        self._pending.clear()
        return changes

    def name_of(self, node_id: str, adapter: str, port: int) -> str | None:
        """The fabric that a port was last offered on, also while it is down."""
        seen = self._nodes.get(node_id, {}).get((adapter, port))
        return seen.name if seen is not None else None

    def errors(self, node_id: str, adapter: str, port: int, now: float) -> list[str]:
        """The error counters of a port that grew within the last hour."""
        seen = self._nodes.get(node_id, {}).get((adapter, port))
        if seen is None:
            return []
        return [name for name, at in sorted(seen.moved_at.items()) if now - at <= WINDOW_S]

    def forget(self, node_id: str) -> None:
        """The node was removed."""
        self._offers.pop(node_id, None)
        if self._nodes.pop(node_id, None) is not None:
            self.fleet_version += 1
            self.version += 1

    def _compare(self, node_id: str, before: _Seen, port: Port, now: float) -> None:
        if not before.there:
            before.there = True
            self._note(node_id, port, before, now, "port back", "is back", None, port.state)
        elif port.state != before.state:
            phys = f" ({port.phys_state})" if port.phys_state and port.state != "ACTIVE" else ""
            what = f"is {port.state or 'unknown'}{phys}, and was {before.state or 'unknown'}"
            self._note(node_id, port, before, now, "port state", what, before.state, port.state)
        before.state = port.state
        if port.sm_lid != before.sm_lid:
            what = f"reports {_master(port.sm_lid)}, and reported {_master(before.sm_lid)}"
            self._note(node_id, port, before, now, "port master", what, _text(before.sm_lid), _text(port.sm_lid))
            before.sm_lid = port.sm_lid
        if port.rate_gbps is not None and port.rate_gbps != before.rate_gbps:
            if before.rate_gbps is not None:
                was, runs = f"{before.rate_gbps:g} Gb/s", f"{port.rate_gbps:g} Gb/s"
                self._note(
                    node_id, port, before, now, "port rate", f"runs at {runs}, and ran at {was}", was, runs
                )
            before.rate_gbps = port.rate_gbps
        for name in ERROR_COUNTERS:
            count = port.counters.get(name)
            if count is None:
                continue
            last = before.counters.get(name)
            # A counter that fell was cleared (perfquery -R, a driver loaded anew), which is no error.
            if last is not None and count > last:
                if now - before.moved_at.get(name, float("-inf")) > WINDOW_S:
                    self.version += 1
                before.moved_at[name] = now
            before.counters[name] = count

    def _note(
        self,
        node_id: str,
        port: Port,
        seen: _Seen,
        now: float,
        kind: str,
        what: str,
        before: str | None,
        after: str | None,
    ) -> None:
        self.version += 1
        change = FabricChange(
            at=now,
            area="port",
            kind=kind,
            what=f"{node_id} {port.adapter}:{port.port} {what}",
            name=seen.name,
            node=node_id,
            port=port.port,
            before=before,
            after=after,
        )
        self._pending.append((port, change))


def _master(sm_lid: int | None) -> str:
    return f"LID {sm_lid} as its master" if sm_lid else "no master"


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
