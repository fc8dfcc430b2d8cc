"""A machine: its power, its GPUs and ports, its disk, and the agent process on it with the real loop."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from llmgw.agent.conversation import Life
from llmgw.agent.loop import AgentLoop
from llmgw.messages.agent import EngineOffer, FabricOffer, Gpu, Inventory, ShardSpec
from tests.simulation.engines import Engine
from tests.simulation.keeper import Record, SimKeeper
from tests.simulation.plan import HEARTBEAT_S, RECONNECT_BASE_S, RECONNECT_MAX_S, MachinePlan
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

INVENTORY_S_MAX = 0.3


class _LoopClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Machine:
    """A node as it really is. A clone has another's identity, and hardware of its own."""

    def __init__(self, plan: MachinePlan, world: World, *, clone: int = 0) -> None:
        self.plan = plan
        self.node_id = plan.node_id
        self.address = plan.address
        self.name = plan.node_id + "'" * clone
        self.world = world
        self.clone = clone
        self.powered = False
        self.boot = 0
        self.booted_at = 0.0
        self.disk: dict[str, Record] = {}
        self.engines: dict[str, Engine] = {}
        self.fabrics_down: set[str] = set()
        self.gpus_broken: set[str] = set()
        self.agent: Process | None = None
        self.loop: AgentLoop | None = None
        self._port = 21000
        self._instances = 0
        self._rng = random.Random(f"{world.plan.seed} {self.name}")

    # Power.

    def power_on(self) -> None:
        """Boot: a new boot id, and an agent soon."""
        if self.powered:
            return
        self.powered = True
        self.boot += 1
        self.booted_at = self.world.now
        self.world.trace.say(self.name, f"boot {self.boot}")
        self.start_agent()

    def power_off(self) -> None:
        """Everything that runs here ends at once."""
        self.powered = False
        self.kill_agent()
        for engine in list(self.engines.values()):
            self.world.engines.end(engine, "the power went")

    # The agent.

    def start_agent(self) -> None:
        """Start the agent unless one runs."""
        if not self.powered or self.agent is not None:
            return
        self._instances += 1
        self.agent = Process(f"agent {self.name}")
        life = Life(
            boot_id=f"{self.name}-boot{self.boot}",
            instance=f"{self.name}-agent{self._instances}",
            instance_started_at=self.world.now - self.booted_at,
        )
        self.world.trace.say(self.name, f"agent {self._instances} starts")
        self.agent.spawn(self._run_agent(self.agent, life))

    def kill_agent(self) -> None:
        """kill -9 of the agent; engines live on."""
        if self.agent is not None:
            self.agent.kill()
            self.agent = None

    async def _run_agent(self, process: Process, life: Life) -> None:
        keeper = SimKeeper(self, self.world, process)
        loop = AgentLoop(
            node_id=self.node_id,
            life=life,
            transport=self.world.network.transport(self),
            keeper=keeper,
            inventory=self._inventory,
            clock=_LoopClock(),
            randomness=self._rng,
            heartbeat_interval_s=HEARTBEAT_S,
            reconnect_base_s=RECONNECT_BASE_S,
            reconnect_max_s=RECONNECT_MAX_S,
            version="simulated",
        )
        self.loop = loop
        await asyncio.sleep(self._rng.uniform(0.1, 1.0))
        await keeper.adopt()
        await loop.run()

    # Hardware.

    def next_port(self) -> int:
        """A port that was not used lately."""
        self._port = 21000 + (self._port - 20999) % 1000
        return self._port

    def gpu_uuids(self) -> list[str]:
        return [f"{self.name}-gpu{index}" for index in range(self.plan.gpus)]

    def usable_fabric(self, name: str) -> bool:
        return name in self.plan.fabrics and name not in self.fabrics_down

    def refusal(self, spec: ShardSpec) -> str | None:
        """Why the agent refuses a start, as admission does; None when it can run."""
        for uuid in spec.gpus:
            if uuid not in self.gpu_uuids():
                return f"GPU {uuid} is not on this node"
            if uuid in self.gpus_broken:
                return f"GPU {uuid} cannot be used: it has an uncorrectable error"
        if spec.nodes > 1 and not self.usable_fabric(spec.fabric or ""):
            return f"fabric {spec.fabric} is not usable on this node"
        return None

    async def _inventory(self) -> Inventory:
        await asyncio.sleep(self._rng.uniform(0.0, INVENTORY_S_MAX))
        return Inventory(
            gpus=[
                Gpu(
                    index=index,
                    uuid=uuid,
                    name="sim",
                    usable=uuid not in self.gpus_broken,
                    reason="an uncorrectable error" if uuid in self.gpus_broken else None,
                )
                for index, uuid in enumerate(self.gpu_uuids())
            ],
            fabrics=[
                FabricOffer(
                    name=name,
                    adapters=["mlx5_0:1"],
                    usable=name not in self.fabrics_down,
                    reason="mlx5_0 port 1 is DOWN" if name in self.fabrics_down else None,
                )
                for name in self.plan.fabrics
            ],
            engines=[EngineOffer(name="sim")],
        )
