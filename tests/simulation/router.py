"""A router: routes by the last table it got, survives servers, and tells what it sees, in order and late."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llmgw.messages.routes import RouteEndpoint, RouteTable, Telemetry
from llmgw.server.hub import Hub
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

TELEMETRY_S = 0.5
REQUEST_EVERY_S = 0.8
FIRST_BYTE_TIMEOUT_S = 45.0
"""How long a request waits at an engine that says nothing."""
RECONNECT_S = 0.2
RESTART_S = (0.5, 3.0)


class SimRouter:
    """The one router process at a time, its table on disk, and its end of the control connection."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._number = 0
        self.alive = False
        self.latency_s = 0.02
        self.table: RouteTable | None = None
        """On disk too: the next router process begins with it."""
        self.in_flight: dict[str, int] = {}
        self.served = 0
        self.refused = 0
        self._seen_alive: set[str] = set()
        self._hub: Hub | None = None
        self._server: Process | None = None
        self._to_send: RouteTable | None = None
        self._last_said: Telemetry | None = None
        self._queue_free_at = 0.0

    @property
    def router_id(self) -> str:
        return f"router-{self._number}"

    def start(self) -> None:
        """A router process begins, with the table on disk."""
        self._number += 1
        self.alive = True
        self.in_flight.clear()
        self._last_said = None
        self._world.spawn(self._requests(self._number))
        self._world.spawn(self._tell(self._number))

    def kill(self) -> None:
        """The process dies with its requests; the server's watch starts another."""
        if not self.alive:
            return
        self.alive = False
        self.in_flight.clear()
        gone, hub, server = self.router_id, self._hub, self._server
        if hub is not None and server is not None and server.alive:
            hub.router_gone(gone)
        self._world.later(self._world.rng.uniform(*RESTART_S), self._restart)

    def _restart(self) -> None:
        self.start()
        hub, server = self._hub, self._server
        if hub is not None and server is not None and server.alive:
            hub.router_connected(self.router_id)
            if self._to_send is not None and (self.table is None or self.table.version != self._to_send.version):
                self.send_table(self._to_send)

    # The control connection.

    async def greet(self, server: Process, hub: Hub, wait_s: float) -> None:
        """A server has started and connects; it waits so long for the greeting, which may also come later."""
        await asyncio.wait([server.spawn(self._greet(server, hub))], timeout=wait_s)

    async def _greet(self, server: Process, hub: Hub) -> None:
        """The server's import comes before its first table."""
        await asyncio.sleep(RECONNECT_S + self.latency_s)
        while not self.alive:  # noqa: ASYNC110 - as the link does
            await asyncio.sleep(RECONNECT_S)
        self._hub, self._server, self._to_send, self._last_said = hub, server, None, None
        hub.router_connected(self.router_id)
        if self.table is not None and self.table.version.epoch != hub.epoch:
            self._world.trace.say("server", f"imports table {self.table.version}")
            hub.import_table(self.table)
            self._world.invariants.imported(hub, self.table)
        hub.release_routes()

    def lost_server(self) -> None:
        """The server is gone; routing goes on."""
        self._hub = self._server = self._to_send = None

    def send_table(self, table: RouteTable) -> None:
        """From the server: route by this table."""
        self._to_send = table
        self._in_order(lambda: self._apply(table))

    def _in_order(self, act: object) -> None:
        """Bytes on one connection arrive in their order, however late."""
        self._queue_free_at = max(self._queue_free_at, self._world.now + self.latency_s)
        self._world.later(self._queue_free_at - self._world.now, act)  # type: ignore[arg-type]

    def _apply(self, table: RouteTable) -> None:
        if not self.alive:
            return
        held = self.table
        if held is not None and held.version.epoch == table.version.epoch and held.version > table.version:
            return
        if held is not None and held.version.epoch > table.version.epoch:
            return  # from a server that has died meanwhile: its connection ended first
        self.table = table
        names = ", ".join(f"{m.name}: {' '.join(e.id for e in m.endpoints) or '-'}" for m in table.models)
        self._world.trace.say("router", f"routes by {table.version.epoch}/{table.version.number}: {names}")
        self._send_telemetry()

    async def _tell(self, number: int) -> None:
        while self.alive and self._number == number:
            await asyncio.sleep(TELEMETRY_S)
            self._send_telemetry()

    def _send_telemetry(self) -> None:
        hub, server = self._hub, self._server
        if not self.alive or hub is None or server is None or not server.alive:
            return
        running = {name: count for name, count in self.in_flight.items() if count}
        for endpoint in self._endpoints():
            if endpoint.id in running and self._world.works(endpoint):
                self._seen_alive.add(endpoint.id)
        message = Telemetry(
            acked=self.table.version if self.table is not None else None,
            in_flight=running,
            alive=sorted(self._seen_alive),
        )
        self._seen_alive.clear()
        if message == self._last_said and not message.alive:
            return
        self._last_said = message
        router_id = self.router_id

        async def arrive() -> None:
            if self.alive and router_id == self.router_id:
                hub.telemetry(router_id, message)

        self._in_order(lambda: server.alive and server.spawn(arrive()))

    # Requests.

    def _endpoints(self) -> list[RouteEndpoint]:
        if self.table is None:
            return []
        return [endpoint for model in self.table.models for endpoint in model.endpoints]

    async def _requests(self, number: int) -> None:
        rng = self._world.rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / REQUEST_EVERY_S))
            if not self.alive or self._number != number:
                return
            models = [model for model in self.table.models if model.endpoints] if self.table is not None else []
            if models:
                model = rng.choice(models)
                self._request(model.name, rng.choice(model.endpoints))

    def _request(self, model: str, endpoint: RouteEndpoint) -> None:
        rng, number = self._world.rng, self._number
        self._world.invariants.requested(model, endpoint)
        if self._world.hangs(endpoint):
            lasts_s = FIRST_BYTE_TIMEOUT_S
        elif self._world.works(endpoint):
            self.served += 1
            self._seen_alive.add(endpoint.id)
            lasts_s = rng.choice([0.3, 0.3, 1.0, 3.0, 8.0, 90.0])
        else:
            self.refused += 1
            return
        self.in_flight[endpoint.id] = self.in_flight.get(endpoint.id, 0) + 1

        def end() -> None:
            if self._number == number and self.alive:
                self.in_flight[endpoint.id] -= 1
                if not self.in_flight[endpoint.id]:
                    del self.in_flight[endpoint.id]
                    self._send_telemetry()

        self._world.later(lasts_s, end)
