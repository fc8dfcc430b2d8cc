"""Invariant 9: each phase of a start ends by its own deadline, whatever progress is told meanwhile."""

from __future__ import annotations

from llmgw.fleet.model import COMMANDED
from llmgw.server.hub import Hub
from tests.simulation.keeper import Record
from tests.simulation.machine import Machine
from tests.simulation.watch import Watch

SLACK_S = 12.0
"""Beyond a deadline: until it is looked at, and until what is left of the engine has ended."""


class StartWatch(Watch):
    """Looks at every start now and then, on the machines and at the server."""

    def _look_at_starts(self, hub: Hub) -> None:
        now = self._world.now
        for machine in self._world.all_machines():
            agent = machine.agent
            if agent is None or agent.paused:
                continue
            for record in machine.disk.values():
                ends_at = self._deadline(machine, record)
                if ends_at is None or record.stop.is_set():
                    continue
                self.expect(
                    now - max(ends_at, machine.steady_since) < SLACK_S,
                    "9",
                    f"{record.spec.shard_id} is {record.phase} on {machine.name} {now - ends_at:.0f} s too long",
                )
        if now - self._world.server.paused_until < SLACK_S:
            return
        for replica in hub.fleet.replicas.values():
            for shard in replica.shards.values():
                if replica.live and shard.phase == COMMANDED:
                    told_s = now - self._sent_at.get(shard.shard_id, now)
                    self.expect(
                        told_s < hub.settings.commanded_timeout_s + SLACK_S,
                        "9",
                        f"{shard.node_id} was told {told_s:.0f} s ago to start {shard.shard_id} and never did",
                    )

    def _deadline(self, machine: Machine, record: Record) -> float | None:
        """When the phase that a shard is in must be over, in virtual seconds; None when it has no end."""
        spec = record.spec
        if record.phase == "waiting":
            return record.received + spec.rendezvous_timeout_s
        if record.phase != "starting":
            return None
        engine = machine.engines.get(spec.shard_id)
        began = engine.started_at if engine is not None else record.since
        return began + spec.load_timeout_s + (spec.rendezvous_timeout_s if spec.nodes > 1 else 0.0)
