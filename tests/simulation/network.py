"""The network between agents and the server: late, lossy, repeating, and cut in one direction or both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgw.agent.conversation import TransportError

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

LATENCY_S_MAX = 0.08
REPEATED_AFTER_S_MAX = 40.0
LATE_S_MAX = 60.0


@dataclass
class Link:
    """One machine's ways: its messages to the server, the server's answers, and the way to its engines."""

    to_server: bool = True
    from_server: bool = True
    to_engines: bool = True
    mended_at: float = 0.0
    """When something was last put right, in virtual seconds."""


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
    """`Transport` of one machine's agent."""

    def __init__(self, machine: Machine, world: World) -> None:
        self._machine = machine
        self._world = world

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """One exchange, with whatever the network does to it. Raises TransportError."""
        world, network = self._world, self._world.network
        rng, rough = world.rng, world.plan.roughness
        link = network.link(self._machine)
        gives_up_at = world.now + timeout_s
        draw = rng.random() if not network.calm else 1.0
        await asyncio.sleep(rng.uniform(0.001, LATENCY_S_MAX))
        if draw < rough.late:
            world.trace.fault("late request", f"{self._machine.name} {path}")
            self._deliver_later(path, body, rng.uniform(1.0, LATE_S_MAX))
            return await self._silence(gives_up_at)
        if not link.to_server or draw < rough.late + rough.lost_request:
            if link.to_server:
                world.trace.fault("lost request", f"{self._machine.name} {path}")
            return await self._silence(gives_up_at)
        if not network.calm and rng.random() < rough.repeated:
            world.trace.fault("repeated request", f"{self._machine.name} {path}")
            self._deliver_later(path, body, rng.uniform(0.01, REPEATED_AFTER_S_MAX))
        answer = world.server.deliver(self._machine, path, body)
        if answer is None:
            raise TransportError("the connection was refused")
        try:
            async with asyncio.timeout_at(gives_up_at):
                status, content = await answer
        except TimeoutError:
            raise TransportError(f"no answer within {timeout_s:g} s") from None
        except ConnectionError:
            raise TransportError("the connection was reset") from None
        if not link.from_server or (not network.calm and rng.random() < rough.lost_answer):
            if link.from_server:
                world.trace.fault("lost answer", f"{self._machine.name} {path}")
            return await self._silence(gives_up_at)
        await asyncio.sleep(rng.uniform(0.001, LATENCY_S_MAX))
        return status, content

    def _deliver_later(self, path: str, body: bytes, delay_s: float) -> None:
        machine, world = self._machine, self._world

        def deliver() -> None:
            world.trace.say("network", f"a copy of {path} of {machine.name} arrives {delay_s:.1f} s late")
            answer = world.server.deliver(machine, path, body)
            if answer is not None:
                answer.add_done_callback(lambda done: done.cancelled() or done.exception())

        world.later(delay_s, deliver)

    async def _silence(self, until: float) -> tuple[int, bytes]:
        await asyncio.sleep(max(0.0, until - self._world.now))
        raise TransportError("no answer in time")
