"""Breaks the world at random moments, and mends it: machines, processes, links, ports, clocks and operators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgw.config.catalog import Catalog, CatalogModel
from llmgw.server.admin.backend import AdminError
from tests.simulation.machine import Machine

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
        self._kinds: list[tuple[int, str, Callable[[], None]]] = [
            (6, "server crash", self._crash_server),
            (3, "server pause", self._pause_server),
            (7, "agent crash", self._crash_agent),
            (8, "engine crash", self._crash_engine),
            (5, "power loss", self._power_loss),
            (5, "partition", self._cut),
            (3, "agent link cut", self._cut_agent),
            (3, "requests cut", self._cut_requests),
            (3, "answers cut", self._cut_answers),
            (2, "engine path cut", self._cut_engines),
            (2, "mass partition", self._cut_many),
            (4, "port down", self._port_down),
            (2, "GPU broken", self._break_gpu),
            (2, "failing model", self._fail_model),
            (2, "slow loading", self._slow_loading),
            (2, "wall clock jump", self._jump),
            (3, "router crash", self._crash_router),
            (2, "slow router", self._slow_router),
            (2, "clone", self._clone),
            (12, "operator", self._operator),
        ]
        self._weights = [weight for weight, _, _ in self._kinds]

    async def run(self) -> None:
        """Faults until the plan's moment."""
        plan = self._world.plan
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / plan.roughness.fault_every_s))
            if self._world.now >= plan.faults_until_s:
                break
            # Troubles come together: two or three in one moment find what one alone does not.
            for _ in range(self._rng.choice([1, 1, 1, 2, 3])):
                (_, _, break_it), *_ = self._rng.choices(self._kinds, self._weights)
                break_it()
        await self._mend()

    async def _mend(self) -> None:
        """Everything is put right; from here the bound counts."""
        world = self._world
        self.over = True
        world.trace.say("faults", "are over")
        world.network.calm = True
        for machine in world.all_machines():
            link = world.network.link(machine)
            link.to_server = link.from_server = link.to_engines = True
            machine.fabrics_down.clear()
            machine.gpus_broken.clear()
        for clone in world.clones:
            clone.power_off()
        world.engines.failing.clear()
        world.engines.slow = 1.0
        world.router.latency_s = 0.02
        if world.server.process is not None:
            world.server.process.resume()
        world.server.start()
        for machine in world.machines.values():
            machine.power_on()
            machine.start_agent()
        await self._restore_intent()

    async def _restore_intent(self) -> None:
        """Operators want what they wanted at first."""
        world = self._world
        while world.server.backend is None:  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.5)
        backend = world.server.backend
        for node_id in sorted(world.machines):
            try:
                await backend.undrain(node_id, by="the end")
                await backend.cordon(node_id, False, by="the end")
            except AdminError:
                pass  # removed; it will join again
        await backend.catalog.change(
            lambda _: world.plan.catalog, "the end", "as it was at first", confirmed=True
        )

    # Choosing.

    def _fault(self, kind: str, text: str = "") -> None:
        self._world.trace.fault(kind, text)

    def _machine(self) -> Machine:
        return self._rng.choice(list(self._world.machines.values()))

    def _after(self, low_s: float, high_s: float, act: Callable[[], None]) -> None:
        """Mend something later, unless everything was mended meanwhile."""
        self._world.later(self._rng.uniform(low_s, high_s), lambda: self.over or act())

    # The machines of the server.

    def _crash_server(self) -> None:
        if not self._world.server.up:
            return
        down_s = self._rng.choice([0.5, 3.0, 20.0, 70.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("server crash", f"for {down_s:.1f} s")
        self._world.server.kill()
        self._world.later(down_s, self._world.server.start)

    def _pause_server(self) -> None:
        process = self._world.server.process
        if process is None or process.paused:
            return
        pause_s = self._rng.choice([2.0, 8.0, 40.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("server pause", f"for {pause_s:.1f} s")
        process.pause()
        self._world.later(pause_s, process.resume)
        self._world.server.paused_until = self._world.now + pause_s

    def _jump(self) -> None:
        jump_s = self._rng.choice([-3600.0, -5.0, 5.0, 86400.0])
        self._fault("wall clock jump", f"by {jump_s:g} s")
        self._world.server.wall_offset_s += jump_s

    def worst_moment(self, node_id: str) -> None:
        """The server has just decided something about a node: now and then this is when things break."""
        if self.over or self._world.now > self._world.plan.faults_until_s:
            return
        if self._rng.random() > WORST_MOMENTS:
            return
        machine = self._world.machines[node_id]
        break_it = self._rng.choice(
            [
                self._crash_server,
                lambda: self._crash_agent(machine),
                lambda: self._power_loss(machine),
                lambda: self._cut_links("partition", machine, "to_server", "from_server", "to_engines"),
                lambda: self._cut_links("answers cut", machine, "from_server"),
                self._crash_router,
                self._operator,
            ]
        )
        delay_s = self._rng.choice([0.0, 0.05, 0.3, 2.0])
        self._world.later(delay_s, lambda: self.over or break_it())

    def _crash_router(self) -> None:
        if self._world.router.alive:
            self._fault("router crash")
            self._world.router.kill()

    def _slow_router(self) -> None:
        router = self._world.router
        router.latency_s = self._rng.choice([0.5, 3.0, 20.0])
        self._fault("slow router", f"{router.latency_s:g} s")

        def mend() -> None:
            router.latency_s = 0.02

        self._after(5, 60, mend)

    # Nodes.

    def _crash_agent(self, machine: Machine | None = None) -> None:
        machine = machine or self._machine()
        if machine.agent is None:
            return
        down_s = self._rng.choice([0.1, 2.0, 10.0, 40.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("agent crash", f"{machine.name} for {down_s:.1f} s")
        machine.kill_agent()
        self._world.later(down_s, machine.start_agent)

    def _crash_engine(self) -> None:
        engines = [engine for machine in self._world.machines.values() for engine in machine.engines.values()]
        if engines:
            engine = self._rng.choice(engines)
            self._fault("engine crash", engine.spec.shard_id)
            self._world.engines.end(engine, "engine ended by SIGSEGV")

    def _power_loss(self, machine: Machine | None = None) -> None:
        machine = machine or self._machine()
        if not machine.powered:
            return
        down_s = self._rng.choice([8.0, 30.0, 120.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("power loss", f"{machine.name} for {down_s:.1f} s")
        machine.power_off()
        self._world.later(down_s, machine.power_on)

    def _clone(self) -> None:
        if len(self._world.clones) >= 2:
            return
        original = self._machine()
        clone = Machine(original.plan, self._world, clone=1 + len(self._world.clones))
        self._world.clones.append(clone)
        self._fault("clone", clone.name)
        clone.power_on()
        self._after(20, 200, clone.power_off)

    # Links.

    def _cut_links(self, kind: str, machine: Machine, *directions: str) -> None:
        link = self._world.network.link(machine)
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

    def _cut(self) -> None:
        self._cut_links("partition", self._machine(), "to_server", "from_server", "to_engines")

    def _cut_agent(self) -> None:
        self._cut_links("agent link cut", self._machine(), "to_server", "from_server")

    def _cut_requests(self) -> None:
        self._cut_links("requests cut", self._machine(), "to_server")

    def _cut_answers(self) -> None:
        self._cut_links("answers cut", self._machine(), "from_server")

    def _cut_engines(self) -> None:
        self._cut_links("engine path cut", self._machine(), "to_engines")

    def _cut_many(self) -> None:
        machines = list(self._world.machines.values())
        for machine in self._rng.sample(machines, 1 + len(machines) // 2):
            self._cut_links("mass partition", machine, "to_server", "from_server", "to_engines")

    # Hardware and engines.

    def _port_down(self) -> None:
        machine = self._machine()
        if not machine.plan.fabrics:
            return
        fabric = self._rng.choice(machine.plan.fabrics)
        self._fault("port down", f"{fabric} on {machine.name}")
        machine.fabrics_down.add(fabric)
        for leader in self._world.engines.gangs_over(machine):
            leader.serves_since = None

        def later() -> None:
            for leader in self._world.engines.gangs_over(machine):
                if fabric in machine.fabrics_down:
                    self._world.engines.end(leader, "NCCL: a peer does not answer")
                elif leader.ready.is_set():
                    leader.serves_since = self._world.now

        def mend() -> None:
            machine.fabrics_down.discard(fabric)

        self._after(2, 60, mend)
        self._world.later(30.0, later)

    def _break_gpu(self) -> None:
        machine = self._machine()
        uuid = self._rng.choice(machine.gpu_uuids())
        self._fault("GPU broken", uuid)
        machine.gpus_broken.add(uuid)
        self._after(20, 200, lambda: machine.gpus_broken.discard(uuid))

    def _fail_model(self) -> None:
        model = self._rng.choice(self._world.plan.catalog.models).name
        self._fault("failing model", model)
        self._world.engines.failing.add(model)
        self._after(10, 120, lambda: self._world.engines.failing.discard(model))

    def _slow_loading(self) -> None:
        self._fault("slow loading")
        self._world.engines.slow = 5.0

        def mend() -> None:
            self._world.engines.slow = 1.0

        self._after(20, 90, mend)

    # Operators.

    def _operator(self) -> None:
        backend, hub = self._world.server.backend, self._world.server.hub
        process = self._world.server.process
        if backend is None or hub is None or process is None:
            return
        node_id = self._machine().node_id
        rng = self._rng
        what = rng.choice(
            [
                "drain",
                "drain",
                "force",
                "undrain",
                "cordon",
                "uncordon",
                "scale",
                "form",
                "drop",
                "restart",
                "remove",
            ]
        )

        async def act() -> None:
            try:
                if what in ("drain", "force"):
                    await backend.drain(node_id, force=what == "force", by="sim")
                    self._world.invariants.intends("drained", node_id)
                    self._after(30, 150, lambda: self._undo(lambda again: again.undrain(node_id, by="sim")))
                elif what == "undrain":
                    await backend.undrain(node_id, by="sim")
                elif what in ("cordon", "uncordon"):
                    await backend.cordon(node_id, what == "cordon", by="sim")
                elif what == "remove":
                    await backend.remove_node(node_id, by="sim")
                elif what == "restart":
                    if hub.fleet.replicas:
                        await backend.restart(rng.choice(list(hub.fleet.replicas)), by="sim")
                elif what == "scale":
                    model = rng.choice(hub.catalog.models).name
                    await backend.scale(model, None, rng.randint(0, 4), confirmed=True, by="sim")
                else:
                    changed = self._changed(hub.catalog, what)
                    await backend.catalog.change(lambda _: changed, "sim", what, confirmed=True)
            except AdminError as error:
                self._world.trace.say("operator", f"is refused: {error}")
            except Exception as error:
                self._world.invariants.crashed(f"operator's {what}", error)

        self._fault(f"operator {what}", node_id)
        self._world.invariants.intends(what, node_id)
        process.spawn(act())

    def _undo(self, act: Callable[..., object]) -> None:
        backend, process = self._world.server.backend, self._world.server.process
        if backend is None or process is None:
            return

        async def undo() -> None:
            try:
                self._world.invariants.intends("undrain", None)
                await act(backend)  # type: ignore[misc]
            except AdminError as error:
                self._world.trace.say("operator", f"is refused: {error}")

        process.spawn(undo())

    def _changed(self, catalog: Catalog, what: str) -> Catalog:
        """Another form for one model, or the catalog without one of its models."""
        models = list(catalog.models)
        at = self._rng.randrange(len(models))
        if what == "drop" and len(models) > 1:
            return Catalog(models=models[:at] + models[at + 1 :])
        if what == "drop" or self._rng.random() < 0.3:
            return self._world.plan.catalog
        model = models[at]
        changed = [
            profile.model_copy(update={"args": [f"--form={self._rng.randint(0, 3)}"]})
            for profile in model.profiles
        ]
        models[at] = CatalogModel.model_validate(
            {**model.model_dump(), "profiles": [profile.model_dump() for profile in changed]}
        )
        return Catalog(models=models)
