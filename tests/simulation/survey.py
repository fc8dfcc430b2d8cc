"""What the managers and maps of the simulated fabrics tell the server: late, with gaps, and with doubts that come
and go; everything, and no doubts, when the faults are over.
"""

from __future__ import annotations

import asyncio
import random
from itertools import combinations
from typing import TYPE_CHECKING

from llmgw.fleet.fabric_facts import FabricFacts, Place
from llmgw.server.hub import Hub

if TYPE_CHECKING:
    from tests.simulation.plan import MachinePlan
    from tests.simulation.world import World

EVERY_S = (5.0, 40.0)
SAYS = 0.85
"""How often something is known while the world is rough."""
DOUBTED = 0.15


class Survey:
    """Draws by itself, so that what it tells changes nothing else of a seed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"survey {world.plan.seed}")

    async def tell(self, hub: Hub) -> None:
        """As a part of the server's process, for as long as that lives."""
        while True:
            await asyncio.sleep(self._rng.uniform(*EVERY_S))
            whole = self._world.faults is not None and self._world.faults.over
            hub.set_fabric_facts(self._facts(whole))

    def _facts(self, whole: bool) -> FabricFacts:
        plan = self._world.plan
        places = {
            (machine.node_id, name): self._place(machine, whole)
            for machine in plan.machines
            for name in machine.fabrics
            if whole or self._rng.random() < SAYS
        }
        leaves = sorted({leaf for machine in plan.machines for leaf in machine.leaves})
        distances = {
            pair: 1 for pair in combinations(leaves, 2) if pair[0].partition(" ")[0] == pair[1].partition(" ")[0]
        }
        return FabricFacts(places, distances)

    def _place(self, machine: MachinePlan, whole: bool) -> Place:
        def known() -> bool:
            return whole or self._rng.random() < SAYS

        doubted = not whole and self._rng.random() < DOUBTED
        return Place(
            physical=machine.physical if known() else None,
            leaves=machine.leaves if known() else (),
            aligned=True if known() else None,
            doubts=("mlx5_0 port 1 counts symbol errors",) if doubted else (),
        )
