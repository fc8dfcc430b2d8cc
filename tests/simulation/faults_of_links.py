"""Faults of the network: links cut in one direction or both, half-open connections, most nodes gone at once."""

from __future__ import annotations

from tests.simulation.breaking import Breaker, Kind
from tests.simulation.machine import Machine


class LinkFaults(Breaker):
    """Cuts and mends the links of `network.Network`."""

    def kinds(self) -> list[Kind]:
        return [
            (5, "partition", lambda: self.partition(self._machine())),
            (3, "agent link cut", self._cut_agent),
            (3, "requests cut", lambda: self._cut("requests cut", self._machine(), "to_server")),
            (3, "answers cut", lambda: self.cut_answers(self._machine())),
            (2, "engine path cut", lambda: self._cut("engine path cut", self._machine(), "to_engines")),
            (2, "half-open connections", lambda: self.halve(self._machine())),
            (2, "mass partition", self._partition_most),
            (2, "mass silence", self._silence_most),
        ]

    def mend(self) -> None:
        world = self._world
        world.network.calm = True
        for machine in world.all_machines():
            link = world.network.link(machine)
            link.to_server = link.from_server = link.to_engines = True
            link.mended_at = world.now

    def partition(self, machine: Machine) -> None:
        """Nothing gets through to the machine or from it."""
        self._cut("partition", machine, "to_server", "from_server", "to_engines")

    def cut_answers(self, machine: Machine) -> None:
        """The server hears the machine, which hears nothing."""
        self._cut("answers cut", machine, "from_server")

    def halve(self, machine: Machine) -> None:
        """A firewall has forgotten the machine's connections: what is sent on them goes nowhere."""
        self._fault("half-open connections", machine.name)
        self._world.network.link(machine).halved_at = self._world.now

    def _cut_agent(self) -> None:
        """The agents' link only, often for longer than any silence of two witnesses may last: engines work on."""
        self._cut("agent link cut", self._machine(), "to_server", "from_server")

    def _partition_most(self) -> None:
        for machine in self._most_machines():
            self._cut("mass partition", machine, "to_server", "from_server", "to_engines")

    def _silence_most(self) -> None:
        """One switch or firewall on the server's side: most agents are silent for the same time."""
        lasts_s = self._rng.uniform(16.0, 45.0)
        directions = ["to_server", "from_server"]
        if self._rng.random() < 0.6:
            directions.append("to_engines")
        for machine in self._most_machines():
            self._cut("mass silence", machine, *directions, lasts_s=lasts_s + self._rng.uniform(0.0, 3.0))

    def _cut(self, kind: str, machine: Machine, *directions: str, lasts_s: float | None = None) -> None:
        link = self._world.network.link(machine)
        if lasts_s is None:
            lasts_s = self._rng.choice([3.0, 12.0, 25.0, 90.0, 250.0]) * self._rng.uniform(0.5, 1.5)
        self._fault(kind, f"{machine.name} for {lasts_s:.1f} s")
        for direction in directions:
            setattr(link, direction, False)

        def mend() -> None:
            for direction in directions:
                setattr(link, direction, True)
            link.mended_at = self._world.now
            self._world.trace.say("fault", f"{kind} of {machine.name} is over")

        self._after(lasts_s, lasts_s, mend)
