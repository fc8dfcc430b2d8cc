"""Breaks the world at random moments, and mends it: machines, processes, links, certificates, operators."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.breaking import Kind
from tests.simulation.faults_of_certificates import CertificateFaults
from tests.simulation.faults_of_engines import EngineFaults
from tests.simulation.faults_of_links import LinkFaults
from tests.simulation.faults_of_machines import MachineFaults
from tests.simulation.faults_of_servers import ServerFaults
from tests.simulation.operators import Operators

if TYPE_CHECKING:
    from tests.simulation.world import World

WORST_MOMENTS = 0.03
"""How often something breaks right after the server has told a node to start or stop a shard."""


class Faults:
    """Injects faults until told to stop; then everything is whole again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self.over = False
        self.over_since = 0.0
        """Virtual seconds."""
        self._servers = ServerFaults(self, world)
        self._machines = MachineFaults(self, world)
        self._links = LinkFaults(self, world)
        self._operators = Operators(self, world)
        self._certificates = CertificateFaults(self, world)
        self._groups = [
            self._servers,
            self._machines,
            self._links,
            EngineFaults(self, world),
            self._certificates,
            self._operators,
        ]
        self._kinds: list[Kind] = [kind for group in self._groups for kind in group.kinds()]
        self._weights = [weight for weight, _, _ in self._kinds]

    async def run(self) -> None:
        """Faults until the plan's moment."""
        plan = self._world.plan
        self._world.spawn(self._certificates.care())
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / plan.roughness.fault_every_s))
            if self._world.now >= plan.faults_until_s:
                break
            # Troubles come together: two or three in one moment find what one alone does not.
            for _ in range(self._rng.choice([1, 1, 1, 2, 3])):
                (_, _, break_it), *_ = self._rng.choices(self._kinds, self._weights)
                break_it()
        await self._mend()

    def worst_moment(self, node_id: str) -> None:
        """The server has just decided something about a node: now and then this is when things break."""
        if self.over or self._world.now > self._world.plan.faults_until_s:
            return
        if self._rng.random() > WORST_MOMENTS:
            return
        machine = self._world.machines[node_id]
        break_it = self._rng.choice(
            [
                self._servers.crash,
                lambda: self._machines.crash_agent(machine),
                lambda: self._machines.pause_agent(machine),
                lambda: self._machines.power_loss(machine),
                lambda: self._machines.stall_disk(machine),
                lambda: self._links.partition(machine),
                lambda: self._links.cut_answers(machine),
                lambda: self._links.halve(machine),
                self._servers.crash_router,
                self._operators.act,
                self._operators.act,
            ]
        )
        delay_s = self._rng.choice([0.0, 0.05, 0.3, 2.0])
        self._world.later(delay_s, lambda: self.over or break_it())

    async def _mend(self) -> None:
        """Everything is put right; from here the bound counts."""
        self.over, self.over_since = True, self._world.now
        self._world.trace.say("faults", "are over")
        for group in self._groups:
            group.mend()
        await self._operators.restore()
