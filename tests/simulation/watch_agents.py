"""Invariants 3, 4 and 10: whom the server believes, and what it makes of what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgw.messages.agent import LIVE_PHASES, Register, Report, ShardSpec
from llmgw.server.hub import Hub
from tests.simulation.watch import Said, Speaker, Watch

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World


UNWRITTEN_S = 0.3
"""How long a write may wait for the disk."""


class AgentWatch(Watch):
    """Looks on when agents speak, when they are told to start something, and when they are given up."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._counters: dict[tuple[str, str, str], int] = {}
        self._instances: dict[tuple[str, str], float] = {}

    def registered(self, hub: Hub, machine: Machine, message: Register, session: str) -> None:
        """The hub has taken a registration: was it right, and is what it believes now complete?"""
        now = self._world.now
        node_id = message.node_id
        life = (message.boot_id, message.instance, message.instance_started_at, message.counter)
        before = self._speakers.get(node_id)
        if before is not None and before.life[0] != life[0]:
            silent_s = now - before.heard
            self.expect(
                silent_s >= hub.settings.lost_after_s - 1e-6,
                "10 clones",
                f"{machine.name} took {node_id} over from {before.life[0]}, heard {silent_s:.1f} s ago",
            )
        highest = self._counters.get((node_id, message.boot_id, message.instance), 0)
        self.expect(
            message.counter > highest,
            "10 order of lives",
            f"registration {message.counter} of {machine.name} was taken after {highest}",
        )
        self._counters[node_id, message.boot_id, message.instance] = message.counter
        latest = self._instances.get((node_id, message.boot_id), float("-inf"))
        self.expect(
            message.instance_started_at >= latest,
            "10 order of lives",
            f"an agent process of {machine.name} was taken after a later one had registered",
        )
        self._instances[node_id, message.boot_id] = message.instance_started_at
        self._speakers[node_id] = Speaker(session, life, now, now, now)
        self._touched = True
        for shard_id in [key for key, said in self._said.items() if said.node_id == node_id]:
            del self._said[shard_id]
        for held in message.held:
            self._said[held.spec.shard_id] = Said(node_id, held.version, held.phase, held.http_port)
        self._world.trace.say(
            machine.name,
            f"registered as {session}: {', '.join(f'{h.spec.shard_id} {h.phase}' for h in message.held)}",
        )
        self._complete(machine, message)
        # 3: nothing is believed that was not said, and nothing that was said is overlooked.
        named = {held.spec.shard_id for held in message.held}
        for _, shard in hub.fleet.shards_on(node_id):
            self.expect(
                shard.shard_id in named,
                "3 registrations are complete",
                f"{shard.shard_id} is still believed on {node_id}, which registered without it",
            )
        owned = {shard.shard_id for _, shard in hub.fleet.shards_on(node_id)}
        owned |= set(hub.fleet.nodes[node_id].disowned)
        for held in message.held:
            found = hub.fleet.shard(held.spec.shard_id)
            late = found is not None and found[1].version > held.version
            if held.phase in LIVE_PHASES and not late:
                self.expect(
                    held.spec.shard_id in owned,
                    "3 registrations are complete",
                    f"{held.spec.shard_id} on {node_id} is {held.phase} and neither owned nor disowned",
                )

    def _complete(self, machine: Machine, message: Register) -> None:
        """Invariant 4: what lives on the machine that has just registered is described, or was ended before."""
        loop = machine.loop
        if loop is None or message.instance != loop._life.instance or message.counter != loop._counter:
            return  # a copy that was late
        named = {held.spec.shard_id for held in message.held}
        for shard_id in machine.engines:
            self.expect(
                shard_id in named or shard_id in machine.disk,
                "4 orphans",
                f"{machine.name} registered without {shard_id}, whose processes live there",
            )

    def server_killed(self) -> None:
        """What the store had not written yet is gone: such a registration may be taken once more."""
        for node_id, speaker in self._speakers.items():
            if self._world.now - speaker.registered_at <= UNWRITTEN_S:
                boot_id, instance, _, _ = speaker.life
                self._counters.pop((node_id, boot_id, instance), None)
                self._instances.pop((node_id, boot_id), None)

    def spoke(self, node_id: str, session: str, what: str) -> None:
        """A message was taken: its node was heard."""
        self.taken(node_id, session, what)
        speaker = self._speakers.get(node_id)
        if speaker is not None:
            speaker.heard = speaker.spoke_at = self._world.now

    def taken(self, node_id: str, session: str, what: str) -> None:
        """Invariant 10: it was not refused, so its session must be the node's present one."""
        speaker = self._speakers.get(node_id)
        self.expect(
            speaker is not None and speaker.session == session,
            "10 superseded sessions",
            f"{what} of {node_id} in {session} was taken",
        )

    def reported(self, node_id: str, message: Report) -> None:
        """A report was taken."""
        for held in message.shards:
            said = self._said.get(held.spec.shard_id)
            if said is None or held.version >= said.version:
                changed = said is None or (held.phase, held.http_port) != (said.phase, said.http_port)
                self._touched = self._touched or changed
                self._said[held.spec.shard_id] = Said(node_id, held.version, held.phase, held.http_port)

    def starting(self, machine: Machine, spec: ShardSpec) -> None:
        """An agent was told to start a shard: nothing that lives there may hold its GPUs (2)."""
        session = machine.loop.session if machine.loop is not None else None
        self.expect(
            session is not None and session == self._sent_in.get(spec.shard_id),
            "10 commands die",
            f"{spec.shard_id} is started in {session}, sent in {self._sent_in.get(spec.shard_id)}",
        )
        for record in machine.disk.values():
            if record.spec.shard_id == spec.shard_id or not record.live:
                continue
            shared = set(record.spec.gpus) & set(spec.gpus)
            self.expect(
                not shared,
                "2 truth",
                f"{spec.shard_id} is started on {machine.name} on {sorted(shared)}, held by "
                f"{record.spec.shard_id} ({record.phase})",
            )
        for engine in machine.engines.values():
            shared = set(engine.spec.gpus) & set(spec.gpus)
            self.expect(
                not shared or engine.spec.shard_id == spec.shard_id,
                "2 truth",
                f"{spec.shard_id} is started on {machine.name} on GPUs of {engine.spec.shard_id}, which lives",
            )

    def forgotten(self, machine: Machine, spec: ShardSpec) -> None:
        """An agent heard that the end of its shard is kept."""
        self.expect(
            self._world.server.disk.holds_end(spec.replica_id, spec.rank, machine.node_id),
            "history",
            f"{machine.name} was told that the end of {spec.shard_id} is kept, and the disk does not have it",
        )
