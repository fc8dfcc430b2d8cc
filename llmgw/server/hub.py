"""The control plane without its sockets: takes what agents, routers and operators say, and decides.

Everything it needs of the world (clocks, ids, the store, publishing a table) is handed in, so that the same hub
runs under a virtual clock. It never blocks: what must wait, waits in the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from llmgw.config.catalog import Catalog
from llmgw.fleet.actions import StopRollout
from llmgw.fleet.carry_out import Effects, carry_out, forget_node
from llmgw.fleet.distrust import forget_forms
from llmgw.fleet.events import Event, node_event
from llmgw.fleet.liveness import speaks
from llmgw.fleet.lives import Life, Lives
from llmgw.fleet.model import Fleet, InheritedRoute, Node, ReplicaState, RouterState
from llmgw.fleet.observe import (
    Enrolment,
    drop_inherited_of,
    forgive_pause,
    heard,
    in_flight,
    is_news,
    register,
    report,
    unanswered,
    witness,
)
from llmgw.fleet.reconcile import reconcile
from llmgw.fleet.routes import routes
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import (
    Command,
    LogChunk,
    Register,
    Registered,
    Report,
    Reported,
)
from llmgw.messages.findings import Finding
from llmgw.messages.routes import RouteEndpoint, RouteTable, TableVersion, Telemetry
from llmgw.server.failures import Failures
from llmgw.server.mailbox import Mailbox
from llmgw.server.request_tally import RequestTally

log = structlog.get_logger("hub")

ROUNDS_MAX = 200
"""Rounds of reconcile in one turn. More is a decision that does not take; it is logged and tried again later."""
TURN_EVERY_S = 0.25
"""`turn` is called at least this often, while nothing keeps this process."""
PAUSE_S = 1.0
"""A turn that is later than this was held up by this process itself."""
LOG_REQUESTS_MAX = 256
CLONE_SHOWN_S = 300.0
"""A clone's agent tries for ever: one that was not heard for so long has been put right."""


class HubError(Exception):
    """A message that is refused. `status` is the HTTP status, `code` stable, the message a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks: `monotonic` decides, `wall` is written into history."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


class Ids(Protocol):
    """Where ids come from."""

    def session(self) -> str: ...

    def replica(self, model: str) -> str: ...

    def request(self) -> str: ...


class Memory(Protocol):
    """What the hub writes down. Calls return at once; the store keeps them in order."""

    def record(self, events: Iterable[Event], at: float) -> None: ...

    def node_registered(self, node: Node, life: Life, at: float) -> None: ...

    def fabrics_changed(self, node: Node, at: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Clone:
    """A second machine under one identity: the sentence with which it was refused, and when (monotonic)."""

    sentence: str
    at: float


class Hub:
    """The control plane's state and its verbs."""

    def __init__(
        self,
        *,
        epoch: str,
        catalog: Catalog,
        settings: FleetSettings,
        clock: Clock,
        ids: Ids,
        memory: Memory,
        publish: Callable[[RouteTable], None],
        static: dict[str, list[RouteEndpoint]] | None = None,
        roll_back: Callable[[StopRollout], None] = lambda action: None,
        known_nodes: Iterable[Node] = (),
        known_lives: Mapping[str, Life] | None = None,
    ) -> None:
        """`known_nodes` and `known_lives` are what the store kept of the nodes that registered before."""
        self.epoch = epoch
        self.catalog = catalog
        self.settings = settings
        self.clock = clock
        self.static = static or {}
        self.fleet = Fleet(nodes={node.node_id: node for node in known_nodes})
        self.lives = Lives(known_lives)
        self.failures = Failures()
        self.clones: dict[str, Clone] = {}
        """Node id → the cloned machine that was last refused."""
        self.requests = RequestTally()
        """What clients got, as the routers told it."""
        self.table: RouteTable | None = None
        self.changed = asyncio.Event()
        """Set whenever `turn` has something to look at."""
        self._ids = ids
        self._memory = memory
        self._publish = publish
        self._roll_back = roll_back
        self._mailboxes: dict[str, Mailbox] = {}
        self._sessions: dict[str, str] = {}
        self._log_requests: dict[str, asyncio.Future[LogChunk]] = {}
        self._created_s = int(clock.wall())
        self._routes_held = True
        self._awake_at: float | None = None

    # What agents say.

    def register(self, message: Register, enrolment: Enrolment, server_version: str) -> Registered:
        """Take a registration; the caller has proven that the node is who it says (invariant 5).

        Raises HubError 409 for an older life or a clone.
        """
        self._notice_pause()
        now = self.clock.monotonic()
        node = self.fleet.nodes.get(message.node_id)
        still_speaks = node is not None and speaks(self.fleet, node, now, self.settings)
        refusal = self.lives.refusal(message, still_speaks=still_speaks)
        if refusal is not None:
            current = self.lives.current(message.node_id)
            if still_speaks and current is not None and current.boot_id != message.boot_id:
                if not self._cloned(message.node_id):
                    self._keep([node_event(message.node_id, "clone refused", refusal)])
                self.clones[message.node_id] = Clone(refusal, now)
            log.warning("registration refused", node=message.node_id, reason=refusal)
            raise HubError(409, "older_life", refusal)
        self.clones.pop(message.node_id, None)
        self._end_session(message.node_id)
        session = self._ids.session()
        life = self.lives.take(message)
        self._sessions[session] = message.node_id
        self._mailboxes[message.node_id] = Mailbox(session)
        self._keep(register(self.fleet, message, enrolment, session, now))
        self.failures.remember(self.fleet, message.held)
        self._memory.node_registered(self.fleet.nodes[message.node_id], life, self.clock.wall())
        self.changed.set()
        return Registered(session=session, server_version=server_version)

    def node_of(self, session: str) -> str:
        """The node of a live session. Raises HubError 410 when it is unknown or superseded."""
        node_id = self._sessions.get(session)
        node = self.fleet.nodes.get(node_id) if node_id is not None else None
        if node_id is None or node is None or node.session != session:
            raise HubError(410, "session_over", "this session is unknown or superseded; register again")
        return node_id

    def certificate_shown(self, node_id: str, not_after: float) -> None:
        """A session goes on over a certificate that holds until then (epoch seconds): maybe a renewed one."""
        node = self.fleet.nodes[node_id]
        # Connections with the earlier one may end later than the first with its successor begins.
        node.certificate_expires_at = max(node.certificate_expires_at or 0.0, not_after)

    async def poll(self, session: str, acked: int, wait_s: float) -> list[Command]:
        """Commands after `acked`, waiting up to `wait_s` for one. Raises HubError 410."""
        node_id = self.node_of(session)
        self._notice_pause()
        mailbox = self._mailboxes[node_id]
        mailbox.acknowledge(acked)
        self._heard(node_id)
        commands = await mailbox.wait(wait_s)
        if mailbox.closed:
            raise HubError(410, "session_over", "this session was superseded; register again")
        # That the wait is over is this server's doing, and no sign of the agent.
        return commands

    def report(self, message: Report) -> Reported:
        """Take heartbeats, transitions and answers. Raises HubError 410."""
        node_id = self.node_of(message.session)
        self._notice_pause()
        now = self.clock.monotonic()
        self.failures.remember(self.fleet, message.shards)
        # A heartbeat that repeats the last one is not worth a decision of its own: the next regular one is soon.
        if is_news(self.fleet, node_id, message.inventory, message.shards):
            self.changed.set()
        fabrics = self.fleet.nodes[node_id].inventory.fabrics
        self._keep(report(self.fleet, node_id, message.inventory, message.shards, now))
        if message.inventory is not None and message.inventory.fabrics != fabrics:
            self._memory.fabrics_changed(self.fleet.nodes[node_id], self.clock.wall())
        for chunk in message.logs:
            waiting = self._log_requests.pop(chunk.request_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(chunk)
        return Reported(
            forget=[item.spec.shard_id for item in message.shards if item.phase in ("stopped", "failed")]
        )

    async def read_log(
        self, node_id: str, shard_id: str, stream: str, offset: int | None, lines: int, timeout_s: float
    ) -> LogChunk:
        """Ask a node for a part of a shard's output. Raises HubError 504 when it does not answer in time."""
        mailbox = self._mailboxes.get(node_id)
        if mailbox is None or mailbox.closed:
            raise HubError(503, "node_silent", f"{node_id} has no session now, so its logs cannot be read")
        if len(self._log_requests) >= LOG_REQUESTS_MAX:
            raise HubError(503, "busy", "too many log requests are waiting for answers; try again in a moment")
        request_id = self._ids.request()
        future: asyncio.Future[LogChunk] = asyncio.get_running_loop().create_future()
        self._log_requests[request_id] = future
        try:
            if not mailbox.read_log(request_id, shard_id, stream, offset, lines):
                raise HubError(503, "busy", f"too many commands wait for {node_id}; try again in a moment")
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise HubError(504, "node_silent", f"{node_id} did not answer within {timeout_s:.0f} s") from None
        finally:
            self._log_requests.pop(request_id, None)

    # What routers say.

    def import_table(self, table: RouteTable) -> None:
        """Take over the table of routers that outlived the previous server, before anything is changed."""
        now = self.clock.monotonic()
        for model in table.models:
            for endpoint in model.endpoints:
                known = self.fleet.replicas.get(endpoint.id)
                # Part of a gang may have been reported already, and not yet its leader.
                if endpoint.node is not None and (known is None or known.state is ReplicaState.ADOPTING):
                    self.fleet.inherited.setdefault(
                        endpoint.id, InheritedRoute(model.name, endpoint, alive_at=now)
                    )
        for node in self.fleet.nodes.values():
            if node.session is not None:
                # It registered before the routers were asked, and has said what it holds.
                drop_inherited_of(self.fleet, node.node_id)

    def release_routes(self) -> None:
        """From now on tables are published: running routers were asked for theirs, or there are none."""
        self._routes_held = False
        self.changed.set()

    def router_connected(self, router_id: str) -> None:
        """A router is there: planned stops wait for its acknowledgements."""
        self.fleet.routers.setdefault(router_id, RouterState())

    def router_gone(self, router_id: str) -> None:
        """A router's process has ended: nothing waits for it any more."""
        self.fleet.routers.pop(router_id, None)
        self.changed.set()

    def telemetry(self, router_id: str, message: Telemetry) -> None:
        """Take what a router saw."""
        self._notice_pause()
        state = self.fleet.routers.setdefault(router_id, RouterState())
        if (state.acked, state.in_flight) != (message.acked, message.in_flight):
            self.changed.set()
        state.acked = message.acked
        now = self.clock.monotonic()
        in_flight(self.fleet, router_id, message.in_flight, now)
        if message.outcomes or message.dropped:
            known = {model.name for model in self.catalog.models}
            self.requests.take(message.outcomes, message.dropped, known)
        for endpoint_id in message.alive:
            witness(self.fleet, endpoint_id, now)

    def probed(self, replica_id: str, works: bool, asked_at: float) -> None:
        """A one-token probe of a replica's leader, sent at `asked_at` on the monotonic clock, has ended."""
        if works:
            self.progressed(replica_id)
        else:
            unanswered(self.fleet, replica_id, asked_at)

    def progressed(self, replica_id: str) -> None:
        """The engine's own counters, or an answer, showed that the replica works."""
        self._notice_pause()
        witness(self.fleet, replica_id, self.clock.monotonic())

    # Deciding.

    def turn(self) -> None:
        """Decide and carry out until nothing is left to do, then publish the routes that follow."""
        self._notice_pause()
        now = self.clock.monotonic()
        for _ in range(ROUNDS_MAX):
            actions = reconcile(self.fleet, self.catalog, now, self.settings, self._ids.replica)
            if not actions:
                break
            effects = Effects()
            for action in actions:
                carry_out(self.fleet, self.catalog, action, now, self.settings, effects)
            self._deliver(effects)
        else:
            log.error(
                "reconcile does not come to an end", rounds=ROUNDS_MAX, actions=[repr(a) for a in actions[:5]]
            )
        self._close_lost_sessions()
        self._publish_routes()
        self._awake_at = self.clock.monotonic()

    def waits_for_routers(self) -> bool:
        """True until routes are released; asked regularly meanwhile in place of `turn`, it notices pauses too."""
        self._notice_pause()
        self._awake_at = self.clock.monotonic()
        return self._routes_held

    def _notice_pause(self) -> None:
        """Whoever comes first after this process stood still: nothing is judged before the pause is forgiven."""
        if self._awake_at is None:
            return
        late_s = self.clock.monotonic() - self._awake_at - TURN_EVERY_S
        if late_s > PAUSE_S:
            self._awake_at += late_s
            self.forgive_pause(late_s)

    def forgive_pause(self, pause_s: float) -> None:
        """This process stood still for so long: every deadline moves by it."""
        log.warning("the control plane stood still; deadlines are extended", pause_s=round(pause_s, 1))
        forgive_pause(self.fleet, pause_s, self.clock.monotonic())

    def start_settling(self) -> None:
        """Called once, at start."""
        now = self.clock.monotonic()
        self.fleet.settling_until = now + self.settings.settle_s
        for node in self.fleet.nodes.values():
            node.since = now

    # What operators want.

    def set_catalog(self, catalog: Catalog, static: dict[str, list[RouteEndpoint]], event: Event) -> None:
        """Another revision rules from now on."""
        forget_forms(self.fleet, self.catalog, catalog)
        self.catalog = catalog
        self.static = static
        self._keep([event])
        self.changed.set()

    def set_cordon(self, node_id: str, cordoned: bool, by: str) -> None:
        """Only stops placement, or allows it again."""
        node = self.fleet.nodes[node_id]
        node.cordoned = cordoned
        self._keep([node_event(node_id, "cordoned" if cordoned else "uncordoned", f"by {by}")])
        self.changed.set()

    def set_drain(self, node_id: str, draining: bool, forced: bool, by: str) -> None:
        """Move everything off the node, or stop doing so."""
        node = self.fleet.nodes[node_id]
        node.draining, node.drain_forced = draining, draining and forced
        event = ("draining by force" if forced else "draining") if draining else "undrained"
        self._keep([node_event(node_id, event, f"by {by}")])
        self.changed.set()

    def restart_replica(self, replica_id: str, by: str) -> None:
        """Replace the replica by a fresh one, bringing that up first."""
        self.fleet.replicas[replica_id].restart_by = by
        self._keep([Event("operator", replica_id, "restart asked for", f"by {by}")])
        self.changed.set()

    def remove_node(self, node_id: str, by: str) -> None:
        """Forget a node and what was believed to run there, but not which of its lives is the latest."""
        self._end_session(node_id)
        self.clones.pop(node_id, None)
        forget_node(self.fleet, node_id, self.clock.monotonic())
        self._keep([node_event(node_id, "removed", f"by {by}")])
        self.changed.set()

    def end_sessions(self) -> None:
        """This server stops: polls that wait are answered, and agents look for the next one."""
        for node_id in list(self._mailboxes):
            self._end_session(node_id)

    def findings(self) -> list[Finding]:
        """What is wrong with the fleet as a whole."""
        found = [finding for node in self.fleet.nodes.values() for finding in self.node_findings(node)]
        if self.fleet.doubted:
            nodes = ", ".join(sorted(self.fleet.doubted))
            found.append(
                Finding(
                    check="mass-silence",
                    severity="error",
                    where="server",
                    what=f"{nodes} fell silent together; none of them is declared lost until a third is back",
                    why="when most nodes go at once, this server's own network is the likelier fault",
                    remedy="check this network; `llmgw ctl node remove NODE` for those that are really gone",
                )
            )
        return found

    def node_findings(self, node: Node) -> list[Finding]:
        """What is wrong with a node, by its own account and by ours."""
        found = []
        if self._cloned(node.node_id):
            found.append(
                Finding(
                    check="cloned-machine",
                    severity="error",
                    where=node.node_id,
                    what=self.clones[node.node_id].sentence,
                    why="two machines under one identity would use each other's commands",
                    remedy="give the clone a host name of its own, then `llmgw ctl cert issue-client`",
                )
            )
        if node.suspect is not None:
            found.append(
                Finding(
                    check="suspect-node",
                    severity="warning",
                    where=node.node_id,
                    what=f"{node.node_id} is placed on last: {node.suspect}",
                    why="what fails here and runs elsewhere is often the machine's fault",
                    remedy=f"run `llmgw doctor` there; `llmgw ctl cordon {node.node_id}` keeps it out",
                )
            )
        return [*found, *node.inventory.findings]

    # Inside.

    def _cloned(self, node_id: str) -> bool:
        clone = self.clones.get(node_id)
        return clone is not None and self.clock.monotonic() - clone.at < CLONE_SHOWN_S

    def _heard(self, node_id: str) -> None:
        events = heard(self.fleet, node_id, self.clock.monotonic())
        if events:
            self._keep(events)
            self.changed.set()

    def _keep(self, events: Iterable[Event]) -> None:
        events = list(events)
        for event in events:
            log.info(
                event.event, kind=event.kind, subject=event.subject, reason=event.reason, nodes=list(event.nodes)
            )
        if events:
            self._memory.record(events, self.clock.wall())

    def _deliver(self, effects: Effects) -> None:
        for node_id, spec in effects.starts:
            mailbox = self._mailboxes.get(node_id)
            if mailbox is not None:
                mailbox.start(spec)
        for node_id, shard_id, reason in effects.stops:
            mailbox = self._mailboxes.get(node_id)
            if mailbox is not None:
                mailbox.stop(shard_id, reason)
        for action in effects.rollbacks:
            self._roll_back(action)
        for event in effects.events:
            if event.kind == "replica" and event.event == "failed":
                self.failures.note(self.fleet, event.subject, event.reason, self.clock.wall())
        self._keep(effects.events)

    def _close_lost_sessions(self) -> None:
        for node_id, mailbox in self._mailboxes.items():
            node = self.fleet.nodes.get(node_id)
            if not mailbox.closed and (node is None or node.session != mailbox.session):
                mailbox.close()
                self._sessions.pop(mailbox.session, None)

    def _end_session(self, node_id: str) -> None:
        mailbox = self._mailboxes.pop(node_id, None)
        if mailbox is not None:
            mailbox.close()
            self._sessions.pop(mailbox.session, None)

    def _publish_routes(self) -> None:
        if self._routes_held:
            return
        models = routes(self.fleet, self.catalog, self.static, self._created_s)
        if self.table is None or models != self.table.models:
            number = self.table.version.number + 1 if self.table is not None else 1
            self.table = RouteTable(version=TableVersion(self.epoch, number), models=models)
            self._publish(self.table)
        for replica in self.fleet.replicas.values():
            if replica.state is ReplicaState.DRAINING and replica.withdrawn is None:
                replica.withdrawn = self.table.version
                self.changed.set()
