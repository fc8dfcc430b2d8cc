"""What all kinds of faults share: whom they hit, how they are told, and how they are mended in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.faults import Faults
    from tests.simulation.world import World

Kind = tuple[int, str, Callable[[], None]]
"""How often, compared with others; its name; and what does it."""


class Breaker:
    """One group of faults."""

    def __init__(self, faults: Faults, world: World) -> None:
        self._faults = faults
        self._world = world
        self._rng = world.rng

    def kinds(self) -> list[Kind]:
        """The faults of this group."""
        raise NotImplementedError

    def mend(self) -> None:
        """Put everything right that this group has broken."""
        raise NotImplementedError

    def _fault(self, kind: str, text: str = "") -> None:
        self._world.trace.fault(kind, text)

    def _machine(self) -> Machine:
        return self._rng.choice(list(self._world.machines.values()))

    def _most_machines(self) -> list[Machine]:
        machines = list(self._world.machines.values())
        return self._rng.sample(machines, 1 + len(machines) // 2)

    def _after(self, low_s: float, high_s: float, act: Callable[[], object]) -> None:
        """Mend something later, unless everything was mended meanwhile."""
        self._world.later(self._rng.uniform(low_s, high_s), lambda: self._faults.over or act())
