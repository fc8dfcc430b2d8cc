"""The invariants of DESIGN.md section 4, by number, as far as they can be seen from outside the hub.

What was said is kept here a second time, by other code, so that the hub's belief is compared with something.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmgw.fleet.carry_out import Effects
from llmgw.fleet.events import Event
from llmgw.fleet.model import LOST, NodeState, Replica, ReplicaState
from llmgw.messages.agent import LIVE_PHASES, Register, Report, ShardSpec
from llmgw.messages.routes import RouteEndpoint, RouteTable
from llmgw.server.hub import Hub

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

WHOLE_EVERY_S = 5.0
PROBING_S = 10.0
"""Within this time of a node's silence its shards have been asked, whatever else is asked at the time."""


class Violation(Exception):
    """An invariant does not hold; the message begins with its number."""


@dataclass
class Speaker:
    """Who registered last for a node, at the present server."""

    session: str
    life: tuple[str, str, float, int]
    heard: float


@dataclass
class Said:
    """A shard as its agent last said it."""

    node_id: str
    version: int
    phase: str
    http_port: int | None


@dataclass
class Turn:
    """How it stood before the hub decided."""

    ready: Counter[tuple[str, str]] = field(default_factory=Counter)
    ready_ids: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Replica id → (model, profile)."""
    acted: bool = False


class Invariants:
    """Called at every step; raises nothing, but keeps the first violation and stops the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.checks: Counter[str] = Counter()
        """How often each was looked at."""
        self.violations: list[str] = []
        self._speakers: dict[str, Speaker] = {}
        self._counters: dict[tuple[str, str, str], int] = {}
        self._instances: dict[tuple[str, str], float] = {}
        self._said: dict[str, Said] = {}
        self._turn = Turn()
        self._kept_routes: dict[str, RouteEndpoint] = {}
        self._draining_since: dict[str, float] = {}
        self._history_id = 0
        self._drained: dict[str, bool] = {}
        """What operators were told to be done; a node of which this is not certain is not in it."""
        self._sent_in: dict[str, str | None] = {}
        """Shard id → the session that its start was sent in."""
        self._whole_due = 0.0

    def expect(self, holds: bool, invariant: str, sentence: str) -> None:
        """Count a check; when it does not hold, the run ends with the sentence."""
        self.checks[invariant] += 1
        if not holds:
            text = f"invariant {invariant}: {sentence}"
            self._world.trace.say("VIOLATION", text)
            self.violations.append(text)
            self._world.stop()

    def crashed(self, where: str, error: BaseException) -> None:
        """Nothing may raise."""
        self.expect(False, "no exceptions", f"{where} raised {error!r}")

    # What servers do.

    def server_started(self, hub: Hub) -> None:
        """A new server knows nobody."""
        self._speakers.clear()
        self._said.clear()
        self._kept_routes.clear()
        self._draining_since.clear()
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

    def imported(self, hub: Hub, table: RouteTable) -> None:
        """The routers' table of before, whose routes must not flicker."""
        self._kept_routes = {
            endpoint.id: endpoint
            for model in table.models
            for endpoint in model.endpoints
            if endpoint.node not in self._speakers
        }

    def published(self, table: RouteTable) -> None:
        """Invariant 3 and section 3: an imported route stays until its node speaks or settling is over."""
        hub = self._world.server.hub
        if hub is None:
            return
        there = {endpoint.id for model in table.models for endpoint in model.endpoints}
        names = {model.name for model in table.models}
        if hub.fleet.settling:
            for endpoint_id, endpoint in self._kept_routes.items():
                if endpoint.node in self._speakers or endpoint_id.rpartition("-")[0] not in names:
                    continue
                if any(
                    said.phase not in LIVE_PHASES and shard_id.rpartition(".")[0] == endpoint_id
                    for shard_id, said in self._said.items()
                ):
                    continue  # another rank has ended, and a replica is one unit
                self.expect(
                    endpoint_id in there,
                    "3 imported routes",
                    f"{endpoint_id} was withdrawn while settling, though {endpoint.node} has not spoken",
                )

    def happened(self, event: Event) -> None:
        """An event for history."""
        self._turn.acted = True
        if event.event == "draining" and event.kind == "replica":
            self._draining_since[event.subject] = self._world.now
        if event.kind == "node" and event.event == "lost":
            self._lost(event.subject)
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

    def _lost(self, node_id: str) -> None:
        """Section 5: lost takes two silent witnesses, or the long limit."""
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
        calm_since = max(
            now - silent_s + PROBING_S, self._world.server.paused_until, self._world.server.started_at
        )
        if silent_s >= hub.settings.unreachable_limit_s - 1e-6 or now - calm_since < hub.settings.lost_after_s:
            return
        for replica in hub.fleet.replicas.values():
            if replica.replica_id not in self._turn.ready_ids or node_id not in replica.node_ids:
                continue
            leader = replica.shards[0]
            machine = self._world.machines.get(leader.node_id)
            engine = self._world.engines.at(machine, leader.http_port or 0)
            if machine is None or engine is None or engine.serves_since is None:
                continue
            link = self._world.network.link(machine)
            works_since = max(engine.serves_since, link.mended_at)
            self.expect(
                not (link.to_engines and now - works_since > hub.settings.lost_after_s + PROBING_S),
                "lost nodes",
                f"{node_id} is lost after {silent_s:.1f} s, though {replica.replica_id} works and can be reached",
            )

    # What agents say.

    def before_register(self, hub: Hub, message: Register) -> None:
        """Invariant 10: who may speak for a node."""

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
        self._speakers[node_id] = Speaker(session, life, now)
        for shard_id in [key for key, said in self._said.items() if said.node_id == node_id]:
            del self._said[shard_id]
        for held in message.held:
            self._said[held.spec.shard_id] = Said(node_id, held.version, held.phase, held.http_port)
        self._world.trace.say(
            machine.name,
            f"registered as {session}: {', '.join(f'{h.spec.shard_id} {h.phase}' for h in message.held)}",
        )
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

    def spoke(self, node_id: str, session: str, what: str) -> None:
        """Invariant 10: a message was not refused, so its session must be the node's present one."""
        speaker = self._speakers.get(node_id)
        self.expect(
            speaker is not None and speaker.session == session,
            "10 superseded sessions",
            f"{what} of {node_id} in {session} was taken",
        )
        if speaker is not None:
            speaker.heard = self._world.now

    def reported(self, node_id: str, message: Report) -> None:
        """A report was taken."""
        for held in message.shards:
            said = self._said.get(held.spec.shard_id)
            if said is None or held.version >= said.version:
                self._said[held.spec.shard_id] = Said(node_id, held.version, held.phase, held.http_port)

    # What the hub decides.

    def before_turn(self, hub: Hub) -> None:
        """Remember how it stood."""
        turn = self._turn = Turn()
        for replica in hub.fleet.replicas.values():
            if replica.state is ReplicaState.READY:
                turn.ready[replica.model, replica.profile] += 1
                turn.ready_ids[replica.replica_id] = (replica.model, replica.profile)

    def decided(self, hub: Hub, effects: Effects) -> None:
        """Starts and stops are about to be sent."""
        fleet = hub.fleet
        for node_id, spec in effects.starts:
            self._turn.acted = True
            self._world.trace.say("server", f"starts {spec.shard_id} on {node_id} {','.join(spec.gpus)}")
            node = fleet.nodes.get(node_id)
            self._sent_in[spec.shard_id] = node.session if node is not None else None
            self._break_now(node_id)
            self.expect(
                node is not None and node.state is not NodeState.LOST,
                "2 GPUs of the lost",
                f"{spec.shard_id} is started on {node_id}, which is lost or unknown",
            )
            if node is None or spec.rank > 0:
                continue
            replica = fleet.replicas[spec.replica_id]
            self.expect(not fleet.settling, "3 settling", f"{spec.replica_id} was placed while settling")
            for seat in replica.seats.values():
                there = fleet.nodes.get(seat.node_id)
                self.expect(
                    there is not None
                    and there.state is NodeState.READY
                    and there.session is not None
                    and not there.draining
                    and not there.cordoned,
                    "2 GPUs of the unreachable",
                    f"{spec.replica_id} was placed on {seat.node_id}, which is "
                    f"{there.state if there else 'unknown'}, draining or cordoned",
                )
                if there is None:
                    continue
                usable = {gpu.uuid for gpu in there.gpus if gpu.usable}
                self.expect(
                    set(seat.gpus) <= usable and len(set(seat.gpus)) == len(seat.gpus),
                    "2 usable GPUs",
                    f"{spec.replica_id} was placed on {seat.gpus} of {seat.node_id}, which can use {usable}",
                )
                if replica.nodes > 1:
                    self.expect(
                        there.fabric(replica.fabric or "") is not None,
                        "1",
                        f"{spec.replica_id} was placed on {seat.node_id}, where {replica.fabric} is not usable",
                    )
            if replica.nodes > 1:
                self.expect(
                    len(set(replica.node_ids)) == replica.nodes, "1", f"{spec.replica_id} sits twice on one node"
                )
        for node_id, shard_id, reason in effects.stops:
            self._turn.acted = True
            self._world.trace.say("server", f"stops {shard_id} on {node_id} ({reason})")
            self._break_now(node_id)
            self._stopping(hub, node_id, shard_id, reason)

    def _break_now(self, node_id: str) -> None:
        if self._world.faults is not None:
            self._world.faults.worst_moment(node_id)

    def _stopping(self, hub: Hub, node_id: str, shard_id: str, reason: str) -> None:
        found = hub.fleet.shard(shard_id)
        if found is None or found[1].node_id != node_id or found[0].state is not ReplicaState.STOPPING:
            return  # a failed replica's rest, or nobody's
        replica = found[0]
        self.expect(
            not hub.fleet.settling, "3 settling", f"{shard_id} is stopped ({reason}) while the server settles"
        )
        router = self._world.router
        since = self._draining_since.get(replica.replica_id)
        if since is None:
            self.expect(
                replica.replica_id not in self._turn.ready_ids,
                "6 planned stops",
                f"{replica.replica_id} was ready and is stopped ({reason}) without a drain",
            )
        elif router.alive and self._world.now - since < hub.settings.drain_grace_s - 1e-6:
            routed = [
                model.name
                for model in (router.table.models if router.table else [])
                for e in model.endpoints
                if e.id == replica.replica_id
            ]
            running = router.in_flight.get(replica.replica_id, 0)
            self.expect(
                not routed and not running,
                "6 planned stops",
                f"{replica.replica_id} is stopped {self._world.now - since:.1f} s after its drain began, "
                f"while the router {'routes to it' if routed else f'has {running} requests on it'}",
            )

    def after_turn(self, hub: Hub) -> None:
        """The hub has decided: what it touched, and everything every so often."""
        self._routes(hub)
        if self._turn.acted:
            self._planned_moves(hub)
            self._seats(hub)
        if self._world.now >= self._whole_due:
            self._whole_due = self._world.now + WHOLE_EVERY_S
            self._seats(hub)
            self._truth()

    def _routes(self, hub: Hub) -> None:
        if hub.table is None or hub._routes_held:
            return
        for model in hub.table.models:
            for endpoint in model.endpoints:
                node = hub.fleet.nodes.get(endpoint.node or "")
                said = self._said.get(f"{endpoint.id}.0")
                spoken = endpoint.node in self._speakers
                if endpoint.id in hub.fleet.inherited and not spoken:
                    self.checks["6 routes"] += 1
                    continue
                self.expect(
                    said is not None and said.phase == "ready",
                    "6 routes",
                    f"{endpoint.id} is routed to while its leader is {said.phase if said else 'not reported'}",
                )
                machine = self._world.machine_at(endpoint.host)
                self.expect(
                    machine is not None
                    and machine.node_id == endpoint.node
                    and (said is None or said.http_port == endpoint.port),
                    "5",
                    f"{endpoint.id} is routed to {endpoint.host}:{endpoint.port}, not where {endpoint.node} is",
                )
                self.expect(
                    node is not None and node.state is not NodeState.LOST,
                    "6 routes",
                    f"{endpoint.id} is routed to on {endpoint.node}, which is lost or unknown",
                )

    def _planned_moves(self, hub: Hub) -> None:
        fleet, turn = hub.fleet, self._turn
        ready: Counter[tuple[str, str]] = Counter()
        planned: dict[tuple[str, str], list[Replica]] = {}
        # One that is gone altogether had failed: what is stopped on purpose must first say that it has ended.
        failed = Counter(key for name, key in turn.ready_ids.items() if name not in fleet.replicas)
        moving: dict[str, list[str]] = {}
        by_id = fleet.replicas
        for replica in by_id.values():
            key = (replica.model, replica.profile)
            if replica.state is ReplicaState.READY:
                ready[key] += 1
            elif replica.replica_id in turn.ready_ids:
                if replica.state is ReplicaState.FAILED:
                    failed[key] += 1
                else:
                    planned.setdefault(key, []).append(replica)
            if replica.live and replica.replaces in by_id and by_id[replica.replaces].live:
                moving.setdefault(replica.model, []).append(replica.replaces)
            elif replica.state is ReplicaState.DRAINING and (
                "replaced by" in (replica.reason or "") or "(stop_first)" in (replica.reason or "")
            ):
                moving.setdefault(replica.model, []).append(replica.replica_id)
        for model, originals in moving.items():
            self.expect(
                len(set(originals)) == len(originals),
                "3 one replacement",
                f"{model}: one of {originals} has two replacements",
            )
            self.expect(
                len(originals) <= 1, "7 one at a time", f"{originals} of {model} are moved at the same time"
            )
        if not fleet.settling:
            self._not_too_many(hub)
        for key, replicas in planned.items():
            found = hub.catalog.find(*key)
            wanted = found[1].replicas if found is not None else 0
            excused = 0
            for replica in replicas:
                reason = replica.reason or ""
                if "(stop_first)" in reason:
                    self.expect(found is not None and found[1].stop_first, "7", f"{replica.replica_id}: {reason}")
                    excused += 1
                elif "(forced)" in reason:
                    excused += 1
            floor = min(wanted, turn.ready[key] - failed[key]) - excused
            self.expect(
                ready[key] >= floor,
                "7",
                f"{[f'{r.replica_id} ({r.reason})' for r in replicas]} left {ready[key]} of {key[0]} ready, "
                f"where {turn.ready[key]} were and {wanted} are wanted",
            )

    def _not_too_many(self, hub: Hub) -> None:
        live: Counter[tuple[str, str]] = Counter()
        replaced = {replica.replaces for replica in hub.fleet.replicas.values() if replica.live}
        for replica in hub.fleet.replicas.values():
            if replica.live and replica.replica_id not in replaced:
                live[replica.model, replica.profile] += 1
        for key, count in live.items():
            found = hub.catalog.find(*key)
            wanted = found[1].replicas if found is not None else 0
            self.expect(
                count <= wanted,
                "3 one replacement",
                f"{count} replicas of {key[0]} are live after a decision, {wanted} are wanted",
            )

    def _seats(self, hub: Hub) -> None:
        fleet = hub.fleet
        owner: dict[tuple[str, str], str] = {}
        self.checks["2 one owner"] += 1
        for replica in fleet.replicas.values():
            for rank, seat in replica.seats.items():
                shard = replica.shards.get(rank)
                if not (shard.holds_gpus if shard is not None else replica.live):
                    continue
                if replica.state is ReplicaState.ADOPTING:
                    continue  # what agents report may be contested; it is not adopted then
                for gpu in seat.gpus:
                    other = owner.setdefault((seat.node_id, gpu), replica.replica_id)
                    if other != replica.replica_id and shard is not None and shard.phase != LOST:
                        self.expect(False, "2 one owner", f"{gpu} belongs to {other} and {replica.replica_id}")
            if replica.nodes > 1 and replica.live:
                self.expect(replica.fabric is not None, "1", f"{replica.replica_id} spans nodes without a fabric")
                for node_id in replica.node_ids:
                    machine = self._world.machines.get(node_id)
                    self.expect(
                        machine is None or replica.fabric in machine.plan.fabrics,
                        "1",
                        f"{replica.replica_id} on {replica.fabric} sits on {node_id}, which is not on it",
                    )

    def _truth(self) -> None:
        for machine in self._world.all_machines():
            held = [gpu for engine in machine.engines.values() for gpu in engine.spec.gpus]
            self.expect(
                len(held) == len(set(held)), "2 truth", f"engines on {machine.name} share GPUs: {sorted(held)}"
            )

    # What happens on machines and at the router.

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

    def requested(self, model: str, endpoint: RouteEndpoint) -> None:
        """A client's request goes to an endpoint: it must never reach another model's engine."""
        if any(clone.address == endpoint.host for clone in self._world.clones):
            return  # two machines with one address: who answers is not in anybody's hands
        engine = self._world.engines.at(self._world.machine_at(endpoint.host), endpoint.port)
        self.expect(
            engine is None or engine.spec.replica_id == endpoint.id,
            "5 right engine",
            f"a request for {model} went to {endpoint.id} at port {endpoint.port}, where another engine is: "
            f"{engine.spec.replica_id if engine else ''}",
        )

    def logged(self, _logger: Any, method: str, event: dict[str, Any]) -> None:
        """The product logged an error that stands for a fault of its own."""
        text = str(event.get("event"))
        if "does not come to an end" in text:
            self.expect(False, "turns end", f"reconcile does not come to an end: {event.get('actions')}")
        elif method == "exception" or text == "a command failed":
            self.expect(False, "no exceptions", f"{text}: {event.get('error')}")
