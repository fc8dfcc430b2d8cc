"""Faults of nodes: their agents, power, disks, clocks, GPUs and ports, and machines that were copied."""

from __future__ import annotations

from tests.simulation.breaking import Breaker, Kind
from tests.simulation.machine import Machine
from tests.simulation.server import WALL_S

CLONES_MAX = 2


class MachineFaults(Breaker):
    """What breaks on a machine, and what it comes back with."""

    def kinds(self) -> list[Kind]:
        return [
            (7, "agent crash", self.crash_agent),
            (4, "agent pause", self.pause_agent),
            (2, "description lost", self._lose_description),
            (5, "power loss", self.power_loss),
            (2, "disk stall", self.stall_disk),
            (8, "port down", self._port_down),
            (2, "GPU broken", self._break_gpu),
            (2, "foreign process", self._take_gpu),
            (1, "node clock jump", self._jump),
            (2, "clone", self._clone),
        ]

    def mend(self) -> None:
        for machine in self._world.all_machines():
            machine.fabrics_down.clear()
            self._world.engines.reach_again()
            machine.gpus_broken.clear()
            machine.gpus_foreign.clear()
            machine.disk_stalls_until = float("-inf")
            machine.resume_agent()
            if machine.wall_offset_s != WALL_S:
                machine.wall_offset_s = WALL_S
                machine.kill_agent()  # who sleeps by a wrong clock may sleep for an hour
        for clone in self._world.clones:
            clone.power_off()
        for machine in self._world.machines.values():
            machine.power_on()
            machine.start_agent()

    def crash_agent(self, machine: Machine | None = None) -> None:
        """kill -9 of an agent; its engines go on. Rather of one whose engines load: the next one takes over."""
        loading = [
            one
            for one in self._world.machines.values()
            if one.agent is not None and any(record.phase == "starting" for record in one.disk.values())
        ]
        if machine is None:
            machine = self._rng.choice(loading) if loading and self._rng.random() < 0.6 else self._machine()
        if machine.agent is None:
            return
        down_s = self._rng.choice([0.1, 2.0, 10.0, 40.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("agent crash", f"{machine.name} for {down_s:.1f} s")
        machine.kill_agent()
        self._world.later(down_s, machine.start_agent)

    def pause_agent(self, machine: Machine | None = None) -> None:
        """SIGSTOP, and SIGCONT later: it goes on in the middle of what it did."""
        machine = machine or self._machine()
        if machine.agent is None or machine.agent.paused:
            return
        pause_s = self._rng.choice([2.0, 14.0, 30.0, 100.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("agent pause", f"{machine.name} for {pause_s:.1f} s")
        machine.agent.pause()
        self._after(pause_s, pause_s, machine.resume_agent)

    def _lose_description(self) -> None:
        """The agent dies, and the description of one of its shards with it: what runs is nobody's."""
        machine = self._machine()
        described = [shard_id for shard_id in machine.engines if shard_id in machine.disk]
        if machine.agent is None or not described:
            return
        lost = self._rng.choice(described)
        self._fault("description lost", lost)
        machine.kill_agent()
        del machine.disk[lost]
        self._world.later(self._rng.uniform(0.1, 20.0), machine.start_agent)

    def power_loss(self, machine: Machine | None = None) -> None:
        """The machine is off for a while."""
        machine = machine or self._machine()
        if not machine.powered:
            return
        down_s = self._rng.choice([8.0, 30.0, 120.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("power loss", f"{machine.name} for {down_s:.1f} s")
        machine.power_off()
        self._world.later(down_s, machine.power_on)

    def _clone(self) -> None:
        if len(self._world.clones) >= CLONES_MAX:
            return
        original = self._machine()
        clone = Machine(
            original.plan,
            self._world,
            original.credential,
            clone=1 + len(self._world.clones),
            wall_offset_s=original.wall_offset_s,
        )
        self._world.clones.append(clone)
        self._fault("clone", clone.name)
        clone.power_on()
        self._after(20, 200, clone.power_off)

    def stall_disk(self, machine: Machine | None = None) -> None:
        """Nothing can be written for a while: a start that is told meanwhile is not taken."""
        machine = machine or self._machine()
        lasts_s = self._rng.choice([10.0, 50.0, 110.0, 110.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("disk stall", f"{machine.name} for {lasts_s:.1f} s")
        machine.disk_stalls_until = self._world.now + lasts_s

    def _jump(self) -> None:
        machine = self._machine()
        jump_s = self._rng.choice([-3600.0, -30.0, 300.0, 86400.0])
        self._fault("node clock jump", f"{machine.name} by {jump_s:g} s")
        machine.wall_offset_s += jump_s

    def _port_down(self) -> None:
        """Rather under a replica of several nodes, which does not always notice."""
        under = [
            one
            for one in self._world.machines.values()
            if any(engine.spec.nodes > 1 for engine in one.engines.values())
        ]
        machine = self._rng.choice(under) if under and self._rng.random() < 0.8 else self._machine()
        if not machine.plan.fabrics:
            return
        fabric = self._rng.choice(machine.plan.fabrics)
        lasts_s = self._rng.choice([5.0, 20.0, 40.0, 120.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("port down", f"{fabric} on {machine.name} for {lasts_s:.1f} s")
        machine.fabrics_down.add(fabric)
        for leader in self._world.engines.gangs_over(machine):
            leader.serves_since = None

        def notice() -> None:
            for leader in self._world.engines.gangs_over(machine):
                if fabric in machine.fabrics_down:
                    self._world.engines.end(leader, "NCCL: a peer does not answer")

        def mend() -> None:
            machine.fabrics_down.discard(fabric)
            self._world.engines.reach_again()

        self._after(lasts_s, lasts_s, mend)
        if self._rng.random() < 0.25:  # others wait for ever
            self._world.later(self._rng.uniform(10, 60), notice)

    def _break_gpu(self) -> None:
        machine = self._machine()
        uuid = self._rng.choice(machine.gpu_uuids())
        self._fault("GPU broken", uuid)
        machine.gpus_broken.add(uuid)
        self._after(20, 200, lambda: machine.gpus_broken.discard(uuid))

    def _take_gpu(self) -> None:
        """Somebody logs in and trains something on a GPU that no shard holds."""
        machine = self._machine()
        held = {gpu for record in machine.disk.values() if record.live for gpu in record.spec.gpus}
        free = [uuid for uuid in machine.gpu_uuids() if uuid not in held]
        if not free:
            return
        uuid = self._rng.choice(free)
        self._fault("foreign process", uuid)
        machine.gpus_foreign.add(uuid)
        self._after(20, 200, lambda: machine.gpus_foreign.discard(uuid))
