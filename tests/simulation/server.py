"""The control process: the real hub, its loop, prober and operators' backend; killed, paused, restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from llmgw.fleet.carry_out import Effects
from llmgw.fleet.events import Event
from llmgw.fleet.lives import Life
from llmgw.fleet.model import Node, Replica
from llmgw.fleet.observe import Enrolment
from llmgw.messages.agent import POLL_WAIT_S, Commands, Poll, Refusal, Register, Report
from llmgw.messages.routes import RouteEndpoint, RouteTable
from llmgw.server.backend import Backend
from llmgw.server.catalogs import ruling_catalog
from llmgw.server.deciding import decide
from llmgw.server.hub import Clock, Hub, HubError
from llmgw.server.memory import StoreMemory, known_lives, known_nodes
from llmgw.server.prober import LOOK_S, Prober
from llmgw.server.routers import GREETING_WAIT_S
from tests.simulation.process import Process
from tests.simulation.store import Disk, SimStore

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

CERTIFICATE_ENDS_AT = 4e9
STORE_BATCH_S = 0.2
KINDS: dict[str, type[Register] | type[Poll] | type[Report]] = {
    "/agent/v1/register": Register,
    "/agent/v1/poll": Poll,
    "/agent/v1/report": Report,
}


class WatchedHub(Hub):
    """The hub, with the invariants looking on."""

    world: World

    def turn(self) -> None:
        watch = self.world.invariants
        watch.before_turn(self)
        super().turn()
        watch.after_turn(self)

    def _deliver(self, effects: Effects) -> None:
        self.world.invariants.decided(self, effects)
        super()._deliver(effects)


class WatchedMemory(StoreMemory):
    """The store's memory; what history keeps stands in the trace too."""

    def __init__(self, store: SimStore, world: World) -> None:
        super().__init__(store)
        self._world = world

    def record(self, events: Iterable[Event], at: float) -> None:
        kept = list(events)
        for event in kept:
            self._world.trace.say("server", f"{event.kind} {event.subject}: {event.event} ({event.reason})")
            self._world.invariants.happened(event)
        super().record(kept, at)

    def node_registered(self, node: Node, life: Life, at: float) -> None:
        super().node_registered(node, life, at)


class SimIds:
    """Ids in sequence, over all servers of a world."""

    def __init__(self) -> None:
        self._last = 0

    def _next(self) -> int:
        self._last += 1
        return self._last

    def session(self) -> str:
        return f"session-{self._next()}"

    def replica(self, model: str) -> str:
        return f"{model}-{self._next()}"

    def request(self) -> str:
        return f"request-{self._next()}"


class SimProber(Prober):
    """The real prober over the simulated network."""

    def __init__(self, hub: Hub, world: World) -> None:
        super().__init__(hub)
        self._world = world

    async def run(self) -> None:
        while True:
            self._look(None)  # type: ignore[arg-type]
            await asyncio.sleep(LOOK_S)

    async def _probe(self, client: Any, endpoint: RouteEndpoint, model: str) -> None:
        process, asked_at = self._world.server.process, self._hub.clock.monotonic()
        works = await self._world.probe(endpoint, self._hub.settings.probe_timeout_s)
        if process is not None and process.alive:
            self._hub.probed(endpoint.id, works, asked_at)

    async def _read_counters(self, client: Any, endpoint: RouteEndpoint, replica: Replica) -> None:
        process = self._world.server.process
        works = await self._world.probe(endpoint, self._hub.settings.probe_timeout_s)
        if works and process is not None and process.alive and self._world.router.in_flight.get(endpoint.id):
            self._hub.progressed(replica.replica_id)


class SimServer:
    """The machine that the control process and the routers run on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.disk = Disk()
        self.ids = SimIds()
        self.hub: WatchedHub | None = None
        self.backend: Backend | None = None
        self.process: Process | None = None
        self.store: SimStore | None = None
        self.paused_until = float("-inf")
        """The end of the last time that the process stood still."""
        self.wall_offset_s = 1_700_000_000.0
        self.started_at = 0.0

    @property
    def up(self) -> bool:
        return self.process is not None

    def wall(self) -> float:
        return self._world.now + self.wall_offset_s

    def start(self) -> None:
        """Start the control process unless it runs."""
        if self.process is None:
            self.process = Process("server")
            self.started_at = self._world.now
            self._world.trace.say("server", "starts")
            self.process.spawn(self._run(self.process))

    def kill(self) -> None:
        """kill -9: what the store had not written is gone."""
        if self.process is None:
            return
        self.process.kill()
        if self.store is not None:
            self.store.write_out(keep_back=self._world.rng.randint(0, 6))
        self._world.router.lost_server()
        self.process = self.hub = self.backend = self.store = None

    async def _run(self, process: Process) -> None:
        world = self._world
        store = SimStore.open(self.disk, self.wall())
        revision, catalog, _ = await ruling_catalog(store, world.plan.catalog, self.wall())
        hub = WatchedHub(
            epoch=store.epoch,
            catalog=catalog,
            settings=world.plan.settings,
            clock=Clock(monotonic=asyncio.get_running_loop().time, wall=self.wall),
            ids=self.ids,
            memory=WatchedMemory(store, world),
            publish=lambda table: self._publish(process, table),
            known_nodes=known_nodes(store, world.now),
            known_lives=known_lives(store),
        )
        hub.world = world
        hub.start_settling()
        self.hub, self.store = hub, store
        self.backend = Backend(
            hub,
            store,
            listen="127.0.0.1:8080",
            revision=revision,
            config_path=None,
            started_at=self.wall(),
            routers=lambda: [],
            problems=lambda: [],
            certificates=lambda: [],
        )
        world.invariants.server_started(hub)
        await world.router.greet(process, hub, GREETING_WAIT_S)
        process.spawn(decide(hub))
        process.spawn(SimProber(hub, world).run())
        while True:
            await asyncio.sleep(STORE_BATCH_S)
            store.write_out()

    def _publish(self, process: Process, table: RouteTable) -> None:
        self._world.invariants.published(table)
        self._world.router.send_table(table)

    # The agents' endpoint.

    def deliver(self, machine: Machine, path: str, body: bytes) -> asyncio.Future[tuple[int, bytes]] | None:
        """Have a call answered; None when nobody listens. When the server dies it ends in a ConnectionError."""
        process, hub = self.process, self.hub
        if process is None or hub is None:
            return None
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        task = process.spawn(self._answer(hub, machine, path, body))

        def done(ended: asyncio.Task[tuple[int, bytes]]) -> None:
            if answer.done():
                return
            if ended.cancelled():
                answer.set_exception(ConnectionError("the server died"))
            else:
                answer.set_result(ended.result())

        task.add_done_callback(done)
        return answer

    async def _answer(self, hub: WatchedHub, machine: Machine, path: str, body: bytes) -> tuple[int, bytes]:
        """As `AgentsApi` answers."""
        try:
            message = msgspec.json.decode(body, type=KINDS[path])
            return 200, msgspec.json.encode(await self._carry_out(hub, machine, message))
        except HubError as error:
            self._world.trace.say(machine.name, f"{path} is refused: {error.status} {error.message}")
            return error.status, msgspec.json.encode(Refusal(code=error.code, message=error.message))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._world.invariants.crashed(f"{path} of {machine.name}", error)
            return 500, msgspec.json.encode(Refusal(code="internal", message=repr(error)))

    async def _carry_out(
        self, hub: WatchedHub, machine: Machine, message: Register | Poll | Report
    ) -> msgspec.Struct:
        watch = self._world.invariants
        if isinstance(message, Register):
            answer = hub.register(
                message, Enrolment(machine.address, CERTIFICATE_ENDS_AT), server_version="simulated"
            )
            watch.registered(hub, machine, message, answer.session)
            return answer
        if hub.node_of(message.session) != machine.node_id:
            raise HubError(403, "identity", f"this session is not {machine.node_id}'s")
        if isinstance(message, Poll):
            watch.spoke(machine.node_id, message.session, "a poll")
            commands = await hub.poll(message.session, message.acked, POLL_WAIT_S)
            watch.taken(machine.node_id, message.session, "a poll's answer")
            return Commands(commands=commands)
        watch.spoke(machine.node_id, message.session, "a report")
        watch.reported(machine.node_id, message)
        return await hub.report(message)
