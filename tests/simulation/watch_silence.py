"""DESIGN.md section 5: lost takes two silent witnesses or the long limit, and mass silence is doubted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmgw.fleet.events import Event
from llmgw.fleet.model import NodeState
from llmgw.server.hub import Hub
from tests.simulation.watch import Watch

if TYPE_CHECKING:
    from tests.simulation.world import World

WINDOW_S = (11.0, 28.0)
"""Who is silent for so long fell silent together; well inside of what the server takes for a window."""
EDGE_S = 8.0
"""Who has been silent for less is not taken for silent by anybody."""
SLACK_S = 3.0
UNFORGIVEN_S = 1.3
"""A pause that is shorter than this is not told from a busy moment."""


@dataclass(frozen=True)
class Mass:
    """Most nodes fell silent together."""

    members: frozenset[str]
    at: float


class SilenceWatch(Watch):
    """Looks on as nodes fall silent, and when one is given up."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._mass: Mass | None = None
        self._doubted: Mass | None = None
        """As the server said it: who may have been counted, and when."""
        self._spared: dict[str, tuple[float, float]] = {}
        """Node that was silent together with most → when others came back, and until when it may do so too."""

    def paused(self, pause_s: float) -> None:
        """The server stood still, and says so: every deadline of its own moves."""
        for speaker in self._speakers.values():
            speaker.heard = min(self._world.now, speaker.heard + pause_s)
        if self._mass is not None:
            self._mass = replace(self._mass, at=min(self._world.now, self._mass.at + pause_s))
        if self._doubted is not None:
            self._doubted = replace(self._doubted, at=min(self._world.now, self._doubted.at + pause_s))
        for shard_id in self._sent_at:
            self._sent_at[shard_id] += pause_s
        self._spared = {
            node_id: (since + pause_s, until + pause_s) for node_id, (since, until) in self._spared.items()
        }

    def _look_for_mass(self, hub: Hub) -> None:
        """Asked before every decision."""
        now, nodes = self._world.now, hub.fleet.nodes
        if self._mass is not None:
            members = [node_id for node_id in self._mass.members if node_id in nodes]
            back = [node_id for node_id in members if self._speakers[node_id].heard > self._mass.at]
            if 3 * len(back) >= len(members):
                self._spare(hub)
            return
        if now - max(self._world.server.paused_until, self._world.server.started_at) < WINDOW_S[1]:
            return
        silent = self._silences(hub)
        together = frozenset(name for name, silent_s in silent.items() if WINDOW_S[0] <= silent_s < WINDOW_S[1])
        if len(together) > 1 and 2 * len(together) > len(silent):
            self.checks["lost in mass silence"] += 1
            self._mass = Mass(together, now)

    def _silences(self, hub: Hub) -> dict[str, float]:
        """For how long each node that is not given up has been silent, in seconds."""
        return {
            node_id: self._world.now - speaker.heard
            for node_id, speaker in self._speakers.items()
            if (node := hub.fleet.nodes.get(node_id)) is not None
            and node.state in (NodeState.READY, NodeState.UNREACHABLE)
        }

    def _spare(self, hub: Hub) -> None:
        """A third is back: those that are still silent get another while."""
        now = self._world.now
        until = now + hub.settings.reconnect_max_s + hub.settings.lost_after_s
        self._spared |= {
            node_id: (now, until) for node_id, silent_s in self._silences(hub).items() if silent_s >= WINDOW_S[0]
        }
        self._mass = None

    def _doubt_event(self, event: Event) -> None:
        """The server begins or ends to doubt: it counts others than we do, at the edges of its window."""
        hub, now = self._world.server.hub, self._world.now
        if hub is None:
            return
        if event.event == "silence doubted":
            self._doubted = Mass(
                frozenset(name for name, silent_s in self._silences(hub).items() if silent_s >= EDGE_S), now
            )
        elif event.event == "silence believed again" and self._doubted is not None:
            silent = [
                node_id
                for node_id, silent_s in self._silences(hub).items()
                if WINDOW_S[0] <= silent_s - (now - self._doubted.at) < WINDOW_S[1]
            ]
            back = [
                node_id
                for node_id in self._doubted.members
                if node_id in self._speakers and self._speakers[node_id].heard > self._doubted.at
            ]
            self.expect(
                3 * len(back) >= len(back) + len(silent),
                "lost in mass silence",
                f"silence is believed again though only {sorted(back)} are back and {sorted(silent)} are not",
            )
            self._spare(hub)

    def _lost(self, node_id: str) -> None:
        hub, now = self._world.server.hub, self._world.now
        speaker = self._speakers.get(node_id)
        if hub is None or speaker is None:
            return
        silent_s = now - speaker.heard
        self.expect(
            silent_s >= hub.settings.lost_after_s - 1e-6,
            "lost nodes",
            f"{node_id} is lost, though it was heard {silent_s:.1f} s ago",
        )
        awake_s = self._awake_since(speaker.spoke_at)
        self.expect(
            awake_s >= hub.settings.lost_after_s - UNFORGIVEN_S,
            "lost nodes",
            f"{node_id} is lost, though the server has stood still for all but {awake_s:.1f} s of its silence",
        )
        self.expect(
            self._mass is None,
            "lost in mass silence",
            f"{node_id} is lost, though most fell silent: {sorted(self._mass.members) if self._mass else ''}",
        )
        since, until = self._spared.get(node_id, (now, now))
        self.expect(
            now >= until - SLACK_S or speaker.heard > since,
            "lost in mass silence",
            f"{node_id} is lost, though it was silent together with most nodes, which are just back",
        )
        if silent_s < hub.settings.unreachable_limit_s - 1e-6:
            self._both_witnesses(hub, node_id, silent_s)

    def _awake_since(self, since: float) -> float:
        """For how long the server has listened since then, in seconds."""
        paused_s = sum(max(0.0, until - max(since, begun)) for begun, until in self._world.server.pauses)
        return self._world.now - since - paused_s

    def _both_witnesses(self, hub: Hub, node_id: str, silent_s: float) -> None:
        """No replica that has worked all the time, and could be asked, may be given up."""
        now = self._world.now
        if now - self._world.server.paused_until < hub.settings.lost_after_s:
            return  # nobody was asked meanwhile
        for replica_id in self._turn.ready_ids:
            replica = hub.fleet.replicas.get(replica_id)
            if replica is None or node_id not in replica.node_ids:
                continue
            leader = replica.shards[0]
            machine = self._world.machines.get(leader.node_id)
            engine = self._world.engines.at(machine, leader.http_port or 0)
            if machine is None or engine is None or not engine.serving or engine.serves_since is None:
                continue
            link = self._world.network.link(machine)
            works_since = max(engine.serves_since, link.mended_at)
            self.expect(
                not link.to_engines or works_since > now - silent_s,
                "lost nodes",
                f"{node_id} is lost after {silent_s:.1f} s, though {replica_id} works and can be reached",
            )
