"""Everything of one seed: machines, network, server, router, and what is true of them at this moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from llmgw.messages.routes import RouteEndpoint
from tests.simulation.certificates import Authority
from tests.simulation.engines import Engines
from tests.simulation.invariants import Invariants
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.plan import Plan
from tests.simulation.router import SimRouter
from tests.simulation.server import SimServer
from tests.simulation.survey import Survey
from tests.simulation.trace import Trace
from tests.simulation.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

PROBE_S_MAX = 0.5


class World:
    """The simulated world of one seed."""

    def __init__(self, plan: Plan, loop: VirtualLoop, trace: Trace) -> None:
        self.plan = plan
        self.loop = loop
        self.trace = trace
        self.rng = random.Random(f"world {plan.seed}")
        self.invariants = Invariants(self)
        self.network = Network(self)
        self.engines = Engines(self.rng, self.later)
        self.survey = Survey(self)
        self.server = SimServer(self)
        self.authority = Authority(self.server.wall, plan.certificate_life_s)
        self.router = SimRouter(self)
        self.machines = {
            machine.node_id: Machine(
                machine,
                self,
                self.authority.enrol(machine.node_id, machine.address),
                wall_offset_s=self.server.wall_offset_s,
            )
            for machine in plan.machines
        }
        self.clones: list[Machine] = []
        self.faults: Faults | None = None
        self.ended = asyncio.Event()
        self._tasks: dict[asyncio.Task[Any], None] = {}

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.loop.time()

    def later(self, delay_s: float, act: Callable[[], object]) -> None:
        """Have something happen after a while."""

        def happen() -> None:
            try:
                act()
            except Exception as error:
                self.invariants.crashed("the simulation itself", error)

        self.loop.call_later(delay_s, happen)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something for as long as the world lasts."""
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def stop(self) -> None:
        """End the run."""
        self.ended.set()

    def begin(self) -> None:
        """Switch everything on."""
        self.router.start()
        self.server.start()
        for machine in self.machines.values():
            machine.power_on()

    def all_machines(self) -> Iterable[Machine]:
        return [*self.machines.values(), *self.clones]

    def machine_at(self, address: str) -> Machine | None:
        """Who answers at an address: a clone only while its original is off."""
        found = None
        for machine in self.all_machines():
            if machine.address == address and (found is None or (machine.powered and not found.powered)):
                found = machine
        return found

    def works(self, endpoint: RouteEndpoint) -> bool:
        """True when a request to the endpoint is answered now."""
        engine = self.engines.at(self.machine_at(endpoint.host), endpoint.port)
        return engine is not None and engine.serving and self.network.reaches_engine(endpoint.host)

    def hangs(self, endpoint: RouteEndpoint) -> bool:
        """True when a request to the endpoint is taken and never answered."""
        engine = self.engines.at(self.machine_at(endpoint.host), endpoint.port)
        return engine is not None and engine.hung and self.network.reaches_engine(endpoint.host)

    async def probe(self, endpoint: RouteEndpoint, timeout_s: float) -> bool:
        """A one-token request."""
        await asyncio.sleep(self.rng.uniform(0.01, PROBE_S_MAX))
        if self.works(endpoint):
            return True
        if self.network.reaches_engine(endpoint.host):
            engine = self.engines.at(self.machine_at(endpoint.host), endpoint.port)
            machine = self.machine_at(endpoint.host)
            if engine is None and machine is not None and machine.powered:
                return False  # refused at once
        await asyncio.sleep(timeout_s)
        return False
