"""Invariant 11, and "hung is not busy": who is given up for health, after how long, and how many at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgw.fleet.events import Event
from llmgw.fleet.model import NodeState, Replica, ReplicaState
from llmgw.server.hub import Hub
from tests.simulation.watch_fabrics import GIVEN_UP_FOR_FABRIC, FabricWatch

if TYPE_CHECKING:
    from tests.simulation.world import World

WINDOW_S = 60.0
WORKS_AGAIN_S = 10.0
"""What works for less than this may not have been seen to."""
BACK_WITHIN_S = 30.0
"""What answers again is asked, and back in the rotation, within this."""
SLACK_S = 12.0
"""The truth is looked at every five seconds."""


@dataclass
class Stopped:
    """A replica that answers nobody."""

    since: float
    works_since: float | None = None


class HealthWatch(FabricWatch):
    """Knows which ready replicas answer, and looks on when one is taken out of rotation or given up."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._stopped: dict[str, Stopped] = {}
        self._well_since: dict[str, float] = {}
        """Replicas that had stopped → since when they have answered again."""
        self._suspended_at: dict[str, float] = {}

    def _look_at_health(self, hub: Hub) -> None:
        now = self._world.now
        for replica in hub.fleet.replicas.values():
            if replica.state is not ReplicaState.READY:
                continue
            stopped = self._stopped.get(replica.replica_id)
            if not self._answers(replica):
                if stopped is None or stopped.works_since is not None:
                    since = now if stopped is None else stopped.since
                    self._well_since.pop(replica.replica_id, None)
                    self._stopped[replica.replica_id] = Stopped(since)
                continue
            if stopped is not None:
                stopped.works_since = stopped.works_since or now
                if now - stopped.works_since >= WORKS_AGAIN_S:
                    del self._stopped[replica.replica_id]
                    self._well_since[replica.replica_id] = stopped.works_since
            well_since = self._well_since.get(replica.replica_id, now)
            if replica.replica_id in self._suspended_at and now - self._world.server.paused_until > BACK_WITHIN_S:
                self.expect(
                    now - max(well_since, self._suspended_at[replica.replica_id]) < BACK_WITHIN_S,
                    "6 hung is not busy",
                    f"{replica.replica_id} has answered for {now - well_since:.0f} s and is out of the rotation",
                )

    def _answers(self, replica: Replica) -> bool:
        said = self._said.get(f"{replica.replica_id}.0")
        machine = self._world.machines.get(said.node_id) if said is not None else None
        if said is None or machine is None or said.http_port is None:
            return False
        engine = self._world.engines.at(machine, said.http_port)
        return engine is not None and engine.serving and self._world.network.link(machine).to_engines

    def _health_event(self, event: Event) -> None:
        if event.event == "out of rotation":
            self._suspended_at[event.subject] = self._world.now
        elif event.event == "back in rotation":
            self._suspended_at.pop(event.subject, None)
        elif event.event == "failed" and event.subject in self._turn.ready_ids:
            hub = self._world.server.hub
            replica = hub.fleet.replicas.get(event.subject) if hub is not None else None
            if hub is not None and replica is not None and self._may_serve(hub, replica):
                if GIVEN_UP_FOR_FABRIC in event.reason:
                    self._given_up_for_fabric(hub, replica)
                else:
                    self._given_up(hub, replica)
                self._count_eviction(hub)
        if event.event in ("failed", "adopted", "resumed"):
            # Another life begins, or this one is over.
            for known in (self._suspended_at, self._well_since, self._stopped):
                known.pop(event.subject, None)

    def _may_serve(self, hub: Hub, replica: Replica) -> bool:
        """Nobody has said that anything of it has ended, and its nodes are there: it was given up for health."""
        for rank in range(replica.nodes):
            said = self._said.get(f"{replica.replica_id}.{rank}")
            node = hub.fleet.nodes.get(replica.seats[rank].node_id)
            if said is None or said.phase != "ready" or node is None or node.state is NodeState.LOST:
                return False
        return replica.replica_id not in self._let_go

    def _given_up(self, hub: Hub, replica: Replica) -> None:
        now, settings = self._world.now, hub.settings
        name = replica.replica_id
        model = hub.catalog.by_name.get(replica.model)
        limit_s = max(settings.stalled_limit_s, model.first_byte_timeout if model is not None else 0.0)
        out_at = self._suspended_at.get(name)
        self.expect(
            out_at is not None and now - out_at >= limit_s - 1e-6,
            "6 hung is not busy",
            f"{name} is given up for health {f'{now - out_at:.0f} s after' if out_at else 'before'} it left the "
            f"rotation; its limit is {limit_s:.0f} s",
        )
        stopped = self._stopped.get(name)
        shortest_s = settings.stall_after_s + limit_s - SLACK_S
        self.expect(
            stopped is not None and now - stopped.since >= shortest_s,
            "6 hung is not busy",
            f"{name} is given up for health, and "
            + (f"has answered until {now - stopped.since:.0f} s ago" if stopped is not None else "it answers"),
        )

    def _count_eviction(self, hub: Hub) -> None:
        now = self._world.now
        self._evicted = [at for at in self._evicted if now - at < WINDOW_S] + [now]
        # Some may have become ready, or come back, in this very turn.
        ready = sum(1 for other in hub.fleet.replicas.values() if other.state is ReplicaState.READY)
        serve = max(len(self._turn.ready_ids), ready + self._evicted.count(now))
        cap = max(2, serve // 10)
        self.expect(
            len(self._evicted) <= cap,
            "11",
            f"{len(self._evicted)} replicas were given up for health within {WINDOW_S:.0f} s, where "
            f"{serve} serve: at most {cap} may be",
        )
