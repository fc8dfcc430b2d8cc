"""The control plane without its sockets: takes what agents, routers and operators say, and decides.

Everything it needs of the world (clocks, ids, the store, publishing a table) is handed in, so that the same hub
runs under a virtual clock. It never blocks: what must wait, waits in the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from llmgw.config.catalog import Catalog
from llmgw.fleet.actions import StopRollout
from llmgw.fleet.carry_out import Effects, forget_node
from llmgw.fleet.distrust import forget_forms
from llmgw.fleet.events import Event, node_event
from llmgw.fleet.fabric_facts import FabricFacts
from llmgw.fleet.fabric_test_gate import FabricTestGate
from llmgw.fleet.liveness import speaks
from llmgw.fleet.lives import Life, Lives
from llmgw.fleet.model import Fleet, Node, Replica, RouterState, Shard
from llmgw.fleet.observe import (
    Enrolment,
    forgive_pause,
    heard,
    in_flight,
    inherit_routes,
    is_news,
    register,
    report,
    unanswered,
    witness,
)
from llmgw.fleet.settings import FleetSettings
from llmgw.messages.agent import (
    Command,
    Inventory,
    Register,
    Registered,
    Report,
    Reported,
)
from llmgw.messages.findings import Finding
from llmgw.messages.routes import RouteEndpoint, RouteTable, Telemetry
from llmgw.messages.upgrade import UpgradeTold
from llmgw.server.api_keys import ApiKeys
from llmgw.server.call_tally import CallTally
from llmgw.server.fabrics.book import FabricBook
from llmgw.server.fabrics.port_rates import PortRates
from llmgw.server.fabrics.port_watch import PortWatch
from llmgw.server.failures import Failures
from llmgw.server.hub_error import HubError
from llmgw.server.limits.readings import limit_readings
from llmgw.server.limits.watch import LimitWatch
from llmgw.server.limits.words import limit_event, limit_findings, silent_findings
from llmgw.server.news import News
from llmgw.server.node_findings import certificate_findings_of, node_findings
from llmgw.server.node_questions import NodeQuestions
from llmgw.server.recent.rates import RecentRates
from llmgw.server.recent.requests import RecentRequests
from llmgw.server.refusals import Refusals
from llmgw.server.request_tally import RequestTally
from llmgw.server.route_tables import RouteTables
from llmgw.server.seams import Clock, Ids, Memory
from llmgw.server.sessions import Sessions
from llmgw.server.transition_tally import TransitionTally
from llmgw.server.troubles import troubles
from llmgw.server.turn_times import TurnTimes
from llmgw.server.turns import Turns

log = structlog.get_logger("hub")

TURN_EVERY_S = 0.25
"""`turn` is called at least this often, while nothing keeps this process."""
PAUSE_S = 1.0
"""A turn that is later than this was held up by this process itself."""
STORED_WAIT_S = 2.0
"""How long a registration or a report of endings waits for the store: far longer than a commit takes, and far
shorter than an agent waits for the answer, or a node's silence lasts until it counts."""


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
        api_keys: ApiKeys | None = None,
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
        self.clones = Refusals()
        self.too_different = Refusals()
        """Agents of a version that this server does not understand."""
        self.upgrades_told: dict[str, UpgradeTold] = {}
        """Node → what its agent last said of the upgrade that it was asked for."""
        self.sessions = Sessions(clock.monotonic)
        self.requests = RequestTally()
        """What clients got, as the routers told it."""
        self.calls = CallTally()
        """How agents' calls fared."""
        self.transitions = TransitionTally()
        """What happened to nodes and replicas."""
        self.turn_times = TurnTimes()
        self.rates = RecentRates(clock.monotonic())
        """How much of it lately, and how fast."""
        self.breakers: dict[str, dict[str, str]] = {}
        """Router id → endpoint id → state, of the breakers that are not closed there."""
        self.queued: dict[str, dict[str, int]] = {}
        """Router id → model → requests that wait there for an engine to have room."""
        self.context_lengths: dict[str, int] = {}
        """Endpoint id → tokens that a prompt and its answer may have together, where the engine said so."""
        self.keys = ApiKeys() if api_keys is None else api_keys
        """Who may use the model API, and what was seen of them."""
        self.recent = RecentRequests(lambda key: self.keys.names.get(key))
        """The newest requests."""
        self.ports = PortWatch()
        """What changed at the nodes' ports, and which of them count errors: for history and placement."""
        self.port_rates = PortRates()
        """How fast the same ports send and receive: for the drawing."""
        self.limits = LimitWatch()
        """Which of the catalog's limits are crossed."""
        self.fabrics = FabricBook()
        """What the fabrics' managers and maps told."""
        self.news = News(epoch)
        """That something which operators look at may have changed."""
        self.changed = asyncio.Event()
        """Set whenever `turn` has something to look at."""
        self._ids = ids
        self._memory = memory
        self._tables = RouteTables(epoch, publish, int(clock.wall()))
        self._roll_back = roll_back
        self._turns = Turns(clock.monotonic, ids.replica, lambda effects: self._deliver(effects), self.turn_times)
        self._awake_at: float | None = None
        self._deciding = False
        self.questions = NodeQuestions(self.fleet, self.sessions, ids)

    @property
    def table(self) -> RouteTable | None:
        """What routers were last told to route by; None while routes are held."""
        return self._tables.latest

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
            another = still_speaks and current is not None and current.boot_id != message.boot_id
            if another and self.clones.refused(message.node_id, refusal, now):
                self._keep([node_event(message.node_id, "clone refused", refusal)])
            log.warning("registration refused", node=message.node_id, reason=refusal)
            raise HubError(409, "older_life", refusal)
        self.clones.forget(message.node_id)
        self.too_different.forget(message.node_id)
        session = self._ids.session()
        life = self.lives.take(message)
        self.sessions.begin(message.node_id, session)
        self._keep(register(self.fleet, message, enrolment, session, now))
        self.failures.remember(self.fleet, message.held)
        self._ports_told(message.node_id, message.inventory)
        self._memory.node_registered(self.fleet.nodes[message.node_id], life, self.clock.wall())
        self.changed.set()
        return Registered(session=session, server_version=server_version)

    async def remembered(self) -> None:
        """Wait until what was taken is stored, so that a kill -9 forgets no registration that was answered.

        A store that takes nothing keeps no agent out: after `STORED_WAIT_S` at most this returns all the same.
        """
        await self._memory.stored(STORED_WAIT_S)

    def refuse_version(self, node_id: str, sentence: str) -> None:
        """An agent was not let in for its version: said where operators look."""
        if self.too_different.refused(node_id, sentence, self.clock.monotonic()) and node_id in self.fleet.nodes:
            self._keep([node_event(node_id, "version refused", sentence)])

    def node_of(self, session: str) -> str:
        """The node of a live session. Raises HubError 410 when it is unknown or superseded."""
        return self.sessions.node_of(session, self.fleet)

    def certificate_shown(self, node_id: str, not_after: float) -> None:
        """A session goes on over a certificate that holds until then (epoch seconds): maybe a renewed one."""
        node = self.fleet.nodes[node_id]
        # Connections with the earlier one may end later than the first with its successor begins.
        node.certificate_expires_at = max(node.certificate_expires_at or 0.0, not_after)

    async def poll(self, session: str, acked: int, wait_s: float) -> list[Command]:
        """Commands after `acked`, waiting up to `wait_s` for one. Raises HubError 410."""
        node_id = self.node_of(session)
        self._notice_pause()
        mailbox = self.sessions.mailbox(node_id)
        assert mailbox is not None  # a live session has one
        self.calls.acknowledged(mailbox.acknowledge(acked))
        self._heard(node_id)
        commands = await mailbox.wait(wait_s)
        if mailbox.closed:
            raise HubError(410, "session_over", "this session was superseded; register again")
        # That the wait is over is this server's doing, and no sign of the agent.
        return commands

    async def report(self, message: Report) -> Reported:
        """Take heartbeats, transitions and answers; they count at once. Raises HubError 410.

        The answer names ended shards only when their endings are stored: an agent forgets those, and tells all
        else again with its next registration. While the store takes nothing the answer names none, after
        `STORED_WAIT_S` at most: agents keep the endings and tell them again, also to the next server.
        """
        node_id = self.node_of(message.session)
        self._notice_pause()
        now = self.clock.monotonic()
        self.failures.remember(self.fleet, message.shards)
        # A heartbeat that repeats the last one is not worth a decision of its own: the next regular one is soon.
        if is_news(self.fleet, node_id, message.inventory, message.shards):
            self.changed.set()
            self.news.happen()
        self.news.move()
        fabrics = self.fleet.nodes[node_id].inventory.fabrics
        self._keep(report(self.fleet, node_id, message.inventory, message.shards, now))
        if message.inventory is not None:
            self._ports_told(node_id, message.inventory)
        if message.inventory is not None and message.inventory.fabrics != fabrics:
            self._memory.fabrics_changed(self.fleet.nodes[node_id], self.clock.wall())
        self.questions.answered(node_id, message)
        if message.upgrades:
            self.upgrades_told[node_id] = message.upgrades[-1]
        ended = [held.spec.shard_id for held in message.shards if held.phase in ("stopped", "failed")]
        if not ended or not await self._memory.stored(STORED_WAIT_S):
            return Reported()
        return Reported(forget=ended)

    # What routers say.

    def import_table(self, table: RouteTable) -> None:
        """Take over the table of routers that outlived the previous server, before anything is changed."""
        inherit_routes(self.fleet, table, self.clock.monotonic())
        self.keys.imported(table)

    def release_routes(self) -> None:
        """From now on tables are published: the router has greeted, and its table was imported."""
        self._tables.held = False
        self.changed.set()

    def router_connected(self, router_id: str) -> None:
        """A router is there: planned stops wait for its acknowledgements."""
        self.fleet.routers.setdefault(router_id, RouterState())

    def router_gone(self, router_id: str) -> None:
        """A router's process has ended: nothing waits for it any more."""
        self.fleet.routers.pop(router_id, None)
        self.breakers.pop(router_id, None)
        self.queued.pop(router_id, None)
        self.keys.shares.forget(router_id)
        self.changed.set()

    def telemetry(self, router_id: str, message: Telemetry) -> None:
        """Take what a router saw."""
        self._notice_pause()
        state = self.fleet.routers.setdefault(router_id, RouterState())
        if (state.acked, state.in_flight) != (message.acked, message.in_flight):
            self.changed.set()
        state.acked = message.acked
        self.breakers[router_id] = message.breakers
        self.queued[router_id] = message.queued
        self.news.move()
        now = self.clock.monotonic()
        in_flight(self.fleet, router_id, message.in_flight, now)
        self.keys.told(router_id, message)
        if message.outcomes or message.dropped:
            known = {model.name for model in self.catalog.models}
            self.requests.take(message.outcomes, message.dropped, known)
            self.rates.take(message.outcomes, known, now)
            self.recent.take(message.outcomes, self.clock.wall())
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
        """Decide and carry out, then publish the routes that follow. Sets `changed` when there is more to do."""
        self._notice_pause()
        begun = self.clock.monotonic()
        if not self._turns.take(self.fleet, self.catalog, self.settings):
            self.changed.set()
        self.sessions.close_lost(self.fleet)
        if self._tables.update(self.fleet, self.catalog, self.static, self.keys, self.context_lengths):
            self.changed.set()
        self._awake_at = self.clock.monotonic()
        self.turn_times.turns.add(self._awake_at - begun)

    def start_deciding(self) -> None:
        """The routers that live were asked for their table, and had their time to answer."""
        self._deciding = True
        self.changed.set()

    def waits_for_routers(self) -> bool:
        """True until `start_deciding`; asked regularly meanwhile in place of `turn`, it notices pauses too."""
        self._notice_pause()
        self._awake_at = self.clock.monotonic()
        return not self._deciding

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

    def keys_changed(self) -> None:
        """`keys` has changed: every router is told at once."""
        self._tables.set_keys(self.keys)
        self.news.happen()

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

    def set_fabric_test_gate(self, gate: FabricTestGate) -> None:
        """Which nodes have passed a test of their fabric, and how long ago."""
        self.fleet.fabric_test_gate = gate
        self.changed.set()

    def set_fabric_facts(self, facts: FabricFacts) -> None:
        """What the fabrics' managers and maps tell has changed; placement reads it from now on."""
        if facts != self.fleet.fabric_facts:
            self.fleet.fabric_facts = facts
            self.changed.set()
            self.news.happen()

    def fabric_event(self, name: str, event: str, reason: str) -> None:
        """Keep in history what happened to a fabric as a whole."""
        self._keep([Event("fabric", name, event, reason)])

    def restart_replica(self, replica_id: str, by: str) -> None:
        """Replace the replica by a fresh one, bringing that up first."""
        self.fleet.replicas[replica_id].restart_by = by
        self._keep([Event("operator", replica_id, "restart asked for", f"by {by}")])
        self.changed.set()

    def remove_node(self, node_id: str, by: str) -> None:
        """Forget a node and what was believed to run there, but not which of its lives is the latest."""
        self.sessions.end(node_id)
        self.clones.forget(node_id)
        self.too_different.forget(node_id)
        self.upgrades_told.pop(node_id, None)
        self.ports.forget(node_id)
        self.port_rates.forget(node_id)
        forget_node(self.fleet, node_id, self.clock.monotonic())
        self._keep([node_event(node_id, "removed", f"by {by}")])
        self.changed.set()

    def weights_removed(self, node_id: str, names: list[str], by: str) -> None:
        """Keep in history what was removed from a node's disk."""
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        self._keep([Event("operator", node_id, "weights removed", f"{shown} by {by}", nodes=(node_id,))])

    def end_sessions(self) -> None:
        """This server stops: polls that wait are answered, agents look for the next, pages are told no more."""
        self.sessions.end_all()
        self.news.end()

    def findings(self) -> list[Finding]:
        """What is wrong with the fleet as a whole."""
        shards = self.fleet.shards_by_node()
        of_nodes = [
            finding
            for node in self.fleet.nodes.values()
            for finding in self.node_findings(node, shards.get(node.node_id, []))
        ]
        of_fabrics = self.fabrics.findings(self.clock.wall())
        of_engines = [*limit_findings(self.fleet, self.limits.crossings()), *silent_findings(self.fleet)]
        of_fleet = troubles(self.fleet, self.catalog, self.clock.monotonic())
        return [*of_fleet, *of_engines, *of_fabrics, *of_nodes]

    def node_findings(self, node: Node, shards: Iterable[tuple[Replica, Shard]] | None = None) -> list[Finding]:
        """What is wrong with a node, by its own account and by ours. `shards` are those on it that are not over;
        they are looked for when they are not given."""
        shards = self.fleet.shards_on(node.node_id) if shards is None else shards
        now = self.clock.monotonic()
        clone, version = self.clones.sentence(node.node_id, now), self.too_different.sentence(node.node_id, now)
        expired = certificate_findings_of(node, self.clock.wall())
        return [*expired, *node_findings(node, shards, clone, version)]

    # What models do.

    def look_at_limits(self) -> None:
        """Compare what models do with their limits; called about once a second."""
        now = self.clock.monotonic()
        busy = self.in_flight_of_models() if self.catalog.limited else {}
        for model in self.catalog.limited:
            busy[model.name] = busy.get(model.name, 0) + self.queued_of(model.name)
        readings = limit_readings(self.fleet, self.catalog, self.rates, busy, now)
        changes = self.limits.look(readings, now)
        crossings = self.limits.crossings()
        self._keep(limit_event(change, crossings) for change in changes)

    def in_flight_of_models(self) -> dict[str, int]:
        """Model → requests that its endpoints work on, as the routers last told; none where there are none."""
        model_of = {each.replica_id: each.model for each in self.fleet.replicas.values()}
        for name, endpoints in self.static.items():
            model_of.update((each.id, name) for each in endpoints)
        found: dict[str, int] = {}
        for router in self.fleet.routers.values():
            for endpoint, count in router.in_flight.items():
                if endpoint in model_of:
                    found[model_of[endpoint]] = found.get(model_of[endpoint], 0) + count
        return found

    def queued_of(self, model: str) -> int:
        """Requests that wait in all routers for an engine of the model to have room."""
        return sum(queued.get(model, 0) for queued in self.queued.values())

    # Inside.

    def _ports_told(self, node_id: str, inventory: Inventory) -> None:
        self.ports.take(node_id, inventory, self.clock.wall())
        self.port_rates.take(node_id, inventory.ports, self.clock.monotonic())

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
        self.transitions.take(events, self.clock.monotonic())
        if events:
            self._memory.record(events, self.clock.wall())
            self.news.happen()

    def _deliver(self, effects: Effects) -> None:
        self.sessions.send(effects)
        for action in effects.rollbacks:
            self._roll_back(action)
        for event in effects.events:
            if event.kind == "replica" and event.event == "failed":
                self.failures.note(self.fleet, event.subject, event.reason, self.clock.wall())
        self._keep(effects.events)
