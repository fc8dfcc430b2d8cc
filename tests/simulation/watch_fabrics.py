"""Section 6 of the design: a fabric port down under a replica of several nodes, by what agents said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgw.fleet.events import Event
from llmgw.fleet.model import NodeState, Replica, ReplicaState
from llmgw.messages.agent import Inventory, Register, Report
from llmgw.server.hub import Hub
from tests.simulation.watch_agents import AgentWatch

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

OUT_WITHIN_S = 3.0
GIVEN_UP_WITHIN_S = 3.0
SPEAKS_S = 8.0
GIVEN_UP_FOR_FABRIC = "has been down under it"


class FabricWatch(AgentWatch):
    """Keeps since when each node says without a break that a fabric is not usable."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._down_since: dict[tuple[str, str], float] = {}
        self._was_down: dict[tuple[str, str], tuple[float, float]] = {}
        """From when until when it was so the last time."""
        self._ports_told_at: dict[str, float] = {}
        self._cut_off: set[str] = set()
        self._evicted: list[float] = []

    def registered(self, hub: Hub, machine: Machine, message: Register, session: str) -> None:
        super().registered(hub, machine, message, session)
        self._ports_told(message.node_id, message.inventory)

    def reported(self, node_id: str, message: Report) -> None:
        super().reported(node_id, message)
        if message.inventory is not None:
            self._ports_told(node_id, message.inventory)

    def _ports_told(self, node_id: str, inventory: Inventory) -> None:
        self._ports_told_at[node_id] = self._world.now
        for offer in inventory.fabrics:
            if offer.usable:
                since = self._down_since.pop((node_id, offer.name), None)
                if since is not None:
                    self._was_down[node_id, offer.name] = (since, self._world.now)
            else:
                self._down_since.setdefault((node_id, offer.name), self._world.now)

    def _forget_ports(self) -> None:
        self._down_since.clear()
        self._was_down.clear()
        self._ports_told_at.clear()
        self._cut_off.clear()

    def _forgive_outages(self, pause_s: float) -> None:
        now = self._world.now
        self._down_since = {key: min(now, at + pause_s) for key, at in self._down_since.items()}
        self._was_down = {
            key: (min(now, since + pause_s), min(now, until + pause_s))
            for key, (since, until) in self._was_down.items()
        }
        self._ports_told_at = {key: min(now, at + pause_s) for key, at in self._ports_told_at.items()}

    def _fabric_event(self, event: Event) -> None:
        hub = self._world.server.hub
        replica = hub.fleet.replicas.get(event.subject) if hub is not None else None
        if event.event in ("fabric up", "failed", "adopted", "resumed"):
            self._cut_off.discard(event.subject)
        elif event.event == "cut off" and hub is not None and replica is not None:
            self._cut_off.add(event.subject)
            down_s = self._down_s(replica)
            self.expect(
                down_s >= hub.settings.port_down_suspend_s - 1e-6,
                "6 port down",
                f"{event.subject} is cut off, and {replica.fabric} has been down under it for {down_s:.1f} s",
            )

    def _given_up_for_fabric(self, hub: Hub, replica: Replica) -> None:
        down_s = self._down_s(replica)
        self.expect(
            down_s >= hub.settings.port_down_fail_s - 1e-6,
            "6 port down",
            f"{replica.replica_id} is given up, and {replica.fabric} has been down under it for {down_s:.1f} s",
        )

    def _down_s(self, replica: Replica) -> float:
        """For how long, without a break, some node of it has said so; it may have been another before."""
        sides = [(node_id, replica.fabric or "") for node_id in replica.node_ids]
        now = self._world.now
        began = min((self._down_since[side] for side in sides if side in self._down_since), default=now)
        for since, until in sorted(
            (self._was_down[side] for side in sides if side in self._was_down), reverse=True
        ):
            if since < began <= until:
                began = since
        return now - began

    def _look_at_outages(self, hub: Hub) -> None:
        """Every so often: what must be out of the rotation is, and what must be given up was."""
        now, settings = self._world.now, hub.settings
        routed = {
            endpoint.id for model in (hub.table.models if hub.table else ()) for endpoint in model.endpoints
        }
        for replica in hub.fleet.replicas.values():
            if replica.nodes == 1 or replica.state is not ReplicaState.READY:
                continue
            for node_id in replica.node_ids:
                node = hub.fleet.nodes.get(node_id)
                since = self._down_since.get((node_id, replica.fabric or ""))
                told_at = self._ports_told_at.get(node_id, float("-inf"))
                if node is None or node.state is not NodeState.READY or since is None or now - told_at > SPEAKS_S:
                    continue
                down_s = now - max(since, replica.since, node.since, self._world.server.paused_until)
                self.expect(
                    replica.replica_id not in routed or down_s < settings.port_down_suspend_s + OUT_WITHIN_S,
                    "6 port down",
                    f"{replica.replica_id} is routed to, and {replica.fabric} has been down on {node_id} for "
                    f"{down_s:.1f} s",
                )
                said_again = told_at - since >= settings.port_down_suspend_s + OUT_WITHIN_S
                if said_again and not any(now - at < 60.0 for at in self._evicted):
                    self.expect(
                        down_s < settings.port_down_fail_s + GIVEN_UP_WITHIN_S,
                        "6 port down",
                        f"{replica.replica_id} is ready, and {replica.fabric} has been down on {node_id} for "
                        f"{down_s:.1f} s",
                    )
