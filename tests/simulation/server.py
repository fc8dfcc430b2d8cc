"""The control process: the real hub, its loop, prober, agents' endpoint and operators' backend; killed, paused,
restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import llmgw
from llmgw.fleet.actions import StopRollout
from llmgw.fleet.carry_out import Effects
from llmgw.fleet.events import Event
from llmgw.fleet.model import Replica
from llmgw.fleet.observe import Enrolment
from llmgw.messages.agent import Command, Refusal, Register, Registered, Report, Reported
from llmgw.messages.routes import RouteEndpoint, RouteTable
from llmgw.server.admin.backend import AdminError
from llmgw.server.agents_api import AgentsApi
from llmgw.server.backend import Backend
from llmgw.server.catalogs import ruling_catalog
from llmgw.server.deciding import decide
from llmgw.server.hub import Clock, Hub
from llmgw.server.memory import StoreMemory, known_lives, known_nodes
from llmgw.server.prober import LOOK_S, Prober
from llmgw.server.rollback import roll_back
from llmgw.server.routers import GREETING_WAIT_S
from llmgw.server.upgrades.releases import Releases
from llmgw.server.upgrades.upgrades import Upgrades
from tests.simulation.certificates import Credential
from tests.simulation.process import Process
from tests.simulation.store import Disk, SimStore

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

STORE_BATCH_S = 0.2
WALL_S = 1_700_000_000.0

CALLER: ContextVar[tuple[Machine, Credential]] = ContextVar("caller")
"""Whose connection is being answered, and with which certificate it began."""


class WatchedHub(Hub):
    """The hub, with the invariants looking on."""

    world: World

    def register(self, message: Register, enrolment: Enrolment, server_version: str) -> Registered:
        machine, credential = CALLER.get()
        answer = super().register(message, enrolment, server_version)
        watch = self.world.invariants
        watch.admitted("a registration", message.node_id, machine, credential)
        watch.registered(self, machine, message, answer.session)
        return answer

    async def poll(self, session: str, acked: int, wait_s: float) -> list[Command]:
        watch, node_id = self.world.invariants, self.node_of(session)
        watch.admitted("a poll", node_id, *CALLER.get())
        watch.spoke(node_id, session, "a poll")
        commands = await super().poll(session, acked, wait_s)
        watch.taken(node_id, session, "a poll's answer")
        return commands

    async def report(self, message: Report) -> Reported:
        watch, node_id = self.world.invariants, self.node_of(message.session)
        watch.admitted("a report", node_id, *CALLER.get())
        watch.spoke(node_id, message.session, "a report")
        watch.reported(node_id, message)
        return await super().report(message)

    def forgive_pause(self, pause_s: float) -> None:
        super().forgive_pause(pause_s)
        self.world.invariants.paused(pause_s)

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
        self.pauses: list[tuple[float, float]] = []
        """When the process stood still, from and to, in virtual seconds."""
        self.wall_offset_s = WALL_S
        self.started_at = 0.0
        self._agents: Any = None
        """The ASGI application of the agents' endpoint."""

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
        self._world.invariants.server_killed()
        if self.store is not None:
            self.store.write_out(keep_back=self._world.rng.randint(0, 6))
        self._world.router.lost_server()
        self.process = self.hub = self.backend = self.store = self._agents = None

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
            roll_back=lambda stopped: process.spawn(self._roll_back(stopped)),
        )
        hub.world = world
        process.spawn(self._write(store))
        hub.start_settling()
        self.hub, self.store = hub, store
        # Agents here run no program that could be replaced: nothing of this is ever started.
        upgrades = Upgrades(hub, store, Releases(Path("/nowhere")), release_key=Path("/nowhere"))
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
            upgrades=upgrades,
        )
        self._agents = AgentsApi(
            hub,
            clock=hub.clock,
            revocations=world.authority.revocations,
            renewer=world.authority.renewer,
            server_version=llmgw.__version__,
            upgrades=upgrades,
        ).app()
        world.invariants.server_started(hub)
        process.spawn(decide(hub))
        process.spawn(world.survey.tell(hub))
        await world.router.greet(process, hub, GREETING_WAIT_S)
        hub.start_deciding()
        process.spawn(SimProber(hub, world).run())

    async def _write(self, store: SimStore) -> None:
        """What the store's writer thread does."""
        while True:
            await asyncio.sleep(STORE_BATCH_S)
            store.write_out()

    async def _roll_back(self, stopped: StopRollout) -> None:
        backend, store = self.backend, self.store
        if backend is None or store is None:
            return
        try:
            await roll_back(backend.catalog, store, stopped)
        except AdminError as error:
            self._world.trace.say("server", f"a rollout is stopped, but not taken back: {error}")

    def _publish(self, process: Process, table: RouteTable) -> None:
        self._world.invariants.published(table)
        self._world.router.send_table(table)

    # The agents' endpoint.

    def deliver(
        self, machine: Machine, credential: Credential, path: str, body: bytes
    ) -> asyncio.Future[tuple[int, bytes]] | None:
        """Have a call answered; None when nobody listens. When the server dies it ends in a ConnectionError."""
        process, agents = self.process, self._agents
        if process is None or agents is None:
            return None
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        task = process.spawn(self._answer(agents, machine, credential, path, body))

        def done(ended: asyncio.Task[tuple[int, bytes]]) -> None:
            if answer.done():
                return
            if ended.cancelled():
                answer.set_exception(ConnectionError("the server died"))
            else:
                answer.set_result(ended.result())

        task.add_done_callback(done)
        return answer

    async def _answer(
        self, agents: Any, machine: Machine, credential: Credential, path: str, body: bytes
    ) -> tuple[int, bytes]:
        """One request and its answer, as uvicorn hands them to the application and back."""
        CALLER.set((machine, credential))
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "https",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [],
            "client": (machine.address, 1024),
            "server": ("10.0.1.1", 8443),
            "extensions": {"tls": {"client_cert_der": credential.der}},
        }
        status, content = 500, b""

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, content
            status = message.get("status", status)
            content += message.get("body", b"")

        await agents(scope, receive, send)
        if status != 200:
            refusal = msgspec.json.decode(content, type=Refusal)
            self._world.trace.say(machine.name, f"{path} is refused: {status} {refusal.message}")
            self._world.invariants.expect(status != 500, "no exceptions", f"{path} of {machine.name} failed")
        return status, content
