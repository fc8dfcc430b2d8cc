"""The network between agents and the server: late, lossy, repeating, half open, cut in one direction or both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgw.agent.conversation import TransportError
from tests.simulation.certificates import Credential

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

LATENCY_S_MAX = 0.08
REPEATED_AFTER_S_MAX = 40.0
LATE_S_MAX = 60.0
NEW_CONNECTION_SHARE = 0.05
"""How often a call finds no idle connection, though all is well: proxies and servers close them."""


@dataclass
class Link:
    """One machine's ways: its messages to the server, the server's answers, and the way to its engines."""

    to_server: bool = True
    from_server: bool = True
    to_engines: bool = True
    mended_at: float = 0.0
    """When something was last put right, in virtual seconds."""
    halved_at: float = -1.0
    """Connections from before this moment are half open: the machine still believes in them."""


@dataclass(eq=False)
class Connection:
    """What a handshake left: it goes on over a certificate that has been replaced, or has ended, meanwhile."""

    credential: Credential
    opened_at: float


class Network:
    """Carries calls. While `calm`, nothing is lost, late or repeated, though cut links stay cut."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._links: dict[str, Link] = {}
        self.calm = False

    def link(self, machine: Machine) -> Link:
        return self._links.setdefault(machine.name, Link())

    def reaches_engine(self, host: str) -> bool:
        """True when routers and probes reach the engines at an address."""
        machine = self._world.machine_at(host)
        return machine is not None and self.link(machine).to_engines

    def transport(self, machine: Machine) -> SimTransport:
        return SimTransport(machine, self._world)


class SimTransport:
    """`Transport` of one machine's agent process."""

    def __init__(self, machine: Machine, world: World) -> None:
        self._machine = machine
        self._world = world
        self._credential = machine.credential
        self._connection: Connection | None = None

    async def reload(self) -> None:
        """Use the certificate as it lies on the machine now, for every later call."""
        self._credential = self._machine.credential
        self._connection = None

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """One exchange, with whatever the network does to it. Raises TransportError."""
        try:
            return await self._exchange(path, body, self._world.now + timeout_s)
        except TransportError:
            self._connection = None
            raise

    async def _exchange(self, path: str, body: bytes, gives_up_at: float) -> tuple[int, bytes]:
        world, network = self._world, self._world.network
        rng, rough = world.rng, world.plan.roughness
        link = network.link(self._machine)
        draw = rng.random() if not network.calm else 1.0
        await asyncio.sleep(rng.uniform(0.001, LATENCY_S_MAX))
        if not link.to_server:
            return await self._silence(gives_up_at)
        connection = self._connected()
        if connection.opened_at <= link.halved_at:
            return await self._silence(gives_up_at)
        if draw < rough.late:
            world.trace.fault("late request", f"{self._machine.name} {path}")
            self._deliver_later(connection, path, body, rng.uniform(1.0, LATE_S_MAX))
            return await self._silence(gives_up_at)
        if draw < rough.late + rough.lost_request:
            world.trace.fault("lost request", f"{self._machine.name} {path}")
            return await self._silence(gives_up_at)
        if not network.calm and rng.random() < rough.repeated:
            world.trace.fault("repeated request", f"{self._machine.name} {path}")
            self._deliver_later(connection, path, body, rng.uniform(0.01, REPEATED_AFTER_S_MAX))
        answer = world.server.deliver(self._machine, connection.credential, path, body)
        if answer is None:
            raise TransportError("the connection was refused")
        try:
            async with asyncio.timeout_at(gives_up_at):
                status, content = await answer
        except TimeoutError:
            raise TransportError("no answer in time") from None
        except ConnectionError:
            raise TransportError("the connection was reset") from None
        if not link.from_server or connection.opened_at <= link.halved_at:
            return await self._silence(gives_up_at)
        if not network.calm and rng.random() < rough.lost_answer:
            world.trace.fault("lost answer", f"{self._machine.name} {path}")
            return await self._silence(gives_up_at)
        await asyncio.sleep(rng.uniform(0.001, LATENCY_S_MAX))
        return status, content

    def _connected(self) -> Connection:
        """The open connection, or a new one; TLS looks at a certificate's time only when one begins."""
        world = self._world
        if self._connection is None or world.rng.random() < NEW_CONNECTION_SHARE:
            if not world.server.up:
                raise TransportError("the connection was refused")
            if not self._credential.holds(world.server.wall()):
                raise TransportError("the server's TLS refused the certificate: it is expired or not valid yet")
            self._connection = Connection(self._credential, world.now)
        return self._connection

    def _deliver_later(self, connection: Connection, path: str, body: bytes, delay_s: float) -> None:
        machine, world = self._machine, self._world

        def deliver() -> None:
            world.trace.say("network", f"a copy of {path} of {machine.name} arrives {delay_s:.1f} s late")
            answer = world.server.deliver(machine, connection.credential, path, body)
            if answer is not None:
                answer.add_done_callback(lambda done: done.cancelled() or done.exception())

        world.later(delay_s, deliver)

    async def _silence(self, until: float) -> tuple[int, bytes]:
        await asyncio.sleep(max(0.0, until - self._world.now))
        raise TransportError("no answer in time")
