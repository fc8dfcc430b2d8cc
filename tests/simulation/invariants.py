"""The invariants of DESIGN.md section 4, by number, as far as they can be seen from outside the hub."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from llmgw.fleet.events import Event
from llmgw.messages.agent import LIVE_PHASES
from llmgw.server.hub import Hub
from tests.simulation.watch_decisions import DecisionWatch
from tests.simulation.watch_health import HealthWatch
from tests.simulation.watch_identity import IdentityWatch
from tests.simulation.watch_routes import RouteWatch
from tests.simulation.watch_silence import SilenceWatch
from tests.simulation.watch_starts import StartWatch

if TYPE_CHECKING:
    from tests.simulation.world import World

WHOLE_EVERY_S = 5.0


class Invariants(HealthWatch, RouteWatch, DecisionWatch, SilenceWatch, StartWatch, IdentityWatch):
    """Called at every step."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._history_id = 0
        self._drained: dict[str, bool] = {}
        """What operators were told to be done; a node of which this is not certain is not in it."""
        self._removed: set[str] = set()
        """Nodes that were removed and have not registered since."""
        self._whole_due = 0.0

    def server_started(self, hub: Hub) -> None:
        """A new server knows nobody."""
        self._speakers.clear()
        self._said.clear()
        self._kept_routes.clear()
        self._draining_since.clear()
        self._sent_at.clear()
        self._mass = self._doubted = None
        self._spared.clear()
        self._stopped.clear()
        self._well_since.clear()
        self._suspended_at.clear()
        self._forget_ports()
        for node_id in self._removed:
            # Nobody keeps the lives of a node that an operator has removed.
            self._counters = {key: count for key, count in self._counters.items() if key[0] != node_id}
            self._instances = {key: at for key, at in self._instances.items() if key[0] != node_id}
        self._removed.clear()
        newest = self._world.server.disk.newest_history_id()
        self.expect(newest >= self._history_id, "history", f"ids went back from {self._history_id} to {newest}")
        self._history_id = newest
        for node_id, drained in self._drained.items():
            node = hub.fleet.nodes.get(node_id)
            self.expect(
                node is None or node.draining == drained,
                "7 flags survive",
                f"{node_id} was {'drained' if drained else 'undrained'} before the server restarted, not now",
            )

    def intends(self, what: str, node_id: str | None) -> None:
        """An operator begins something, or (`drained`) is told that it is done."""
        if what == "drained" and node_id is not None:
            self._drained[node_id] = True
        elif what in ("drain", "force", "undrain", "remove"):
            for name in [node_id] if node_id is not None else list(self._drained):
                self._drained.pop(name, None)

    def happened(self, event: Event) -> None:
        """An event for history."""
        self._turn.acted = True
        if event.event == "draining" and event.kind == "replica":
            self._draining_since[event.subject] = self._world.now
        if event.event == "failed" and event.kind == "replica":
            self._draining_since.pop(event.subject, None)  # its drain is over with it
        if event.kind == "node" and event.event in ("removed", "undrained"):
            self._drained.pop(event.subject, None)
        if event.kind == "node" and event.event == "removed":
            # Forgotten because an operator said so: whoever comes next under the name is a new node.
            self._speakers.pop(event.subject, None)
            self._removed.add(event.subject)
        if event.kind == "node" and event.event == "joined":
            self._removed.discard(event.subject)
        if event.kind == "replica" and event.event == "shard let go":
            self._let_go.add(event.subject)
        if event.kind == "node" and event.event == "lost":
            self._lost(event.subject)
        if event.kind == "replica":
            self._fabric_event(event)
            self._health_event(event)
        if event.kind == "server":
            self._doubt_event(event)
        if event.event == "adopted":
            hub = self._world.server.hub
            replica = hub.fleet.replicas.get(event.subject) if hub is not None else None
            if replica is not None:
                self.expect(
                    all(
                        (said := self._said.get(f"{replica.replica_id}.{rank}")) is not None
                        and said.phase in LIVE_PHASES
                        for rank in range(replica.nodes)
                    ),
                    "3 adoption is whole",
                    f"{replica.replica_id} was adopted though not every rank was reported",
                )

    def paused(self, pause_s: float) -> None:
        """The server stood still, and says so."""
        super().paused(pause_s)
        self._forgive_outages(pause_s)

    def before_turn(self, hub: Hub) -> None:
        """The hub is about to decide."""
        super().before_turn(hub)
        self._look_for_mass(hub)

    def after_turn(self, hub: Hub) -> None:
        """The hub has decided: what it touched, and everything every so often."""
        if self._touched or self._turn.acted:
            self._touched = False
            self._routes(hub)
        if self._turn.acted:
            self._planned_moves(hub)
            self._seats(hub)
        if self._world.now >= self._whole_due:
            self._whole_due = self._world.now + WHOLE_EVERY_S
            self._seats(hub)
            self._truth()
            self._look_at_health(hub)
            self._look_at_outages(hub)
            self._look_at_starts(hub)
            self._look_at_renewals()

    def _truth(self) -> None:
        for machine in self._world.all_machines():
            held = [gpu for engine in machine.engines.values() for gpu in engine.spec.gpus]
            self.expect(
                len(held) == len(set(held)), "2 truth", f"engines on {machine.name} share GPUs: {sorted(held)}"
            )

    def logged(self, _logger: Any, method: str, event: dict[str, Any]) -> None:
        """The product logged an error that stands for a fault of its own."""
        text = str(event.get("event"))
        error = event.get("error") or sys.exc_info()[1]
        if "does not come to an end" in text:
            self.expect(False, "turns end", f"reconcile does not come to an end: {event.get('actions')}")
        elif method == "exception" or text == "a command failed":
            self.expect(False, "no exceptions", f"{text}: {error!r}")
