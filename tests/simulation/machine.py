"""A machine: its power, clock, GPUs and ports, its disk, and the agent process on it with the real loop."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import llmgw
from llmgw.agent.certificates import CertificateKeeper
from llmgw.agent.conversation import Life
from llmgw.agent.loop import AgentLoop
from llmgw.messages.agent import EngineOffer, FabricOffer, Gpu, Inventory, ShardSpec
from llmgw.pki.renewal import make_csr, renew_after
from tests.simulation.certificates import Credential
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

    def __init__(
        self, plan: MachinePlan, world: World, credential: Credential, *, clone: int = 0, wall_offset_s: float
    ) -> None:
        self.plan = plan
        self.node_id = plan.node_id
        self.address = plan.address
        self.name = plan.node_id + "'" * clone
        self.world = world
        self.credential = credential
        self.wall_offset_s = wall_offset_s
        self.clone = clone
        self.powered = False
        self.boot = 0
        self.booted_at = 0.0
        self.disk: dict[str, Record] = {}
        self.disk_stalls_until = float("-inf")
        """Until then, in virtual seconds, nothing can be written."""
        self.engines: dict[str, Engine] = {}
        self.fabrics_down: set[str] = set()
        self.gpus_broken: set[str] = set()
        self.gpus_foreign: set[str] = set()
        """GPUs whose memory a process that is not ours holds."""
        self.agent: Process | None = None
        self.loop: AgentLoop | None = None
        self.steady_since = 0.0
        """Since when, in virtual seconds, the agent has run without being stopped or paused."""
        self._port = 21000
        self._instances = 0
        self._rng = random.Random(f"{world.plan.seed} {self.name}")

    def wall(self) -> float:
        """This machine's own idea of the time, epoch seconds."""
        return self.world.now + self.wall_offset_s

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
        self.steady_since = self.world.now
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

    def resume_agent(self) -> None:
        """As SIGCONT does."""
        if self.agent is not None and self.agent.paused:
            self.steady_since = self.world.now
            self.agent.resume()

    def enrol(self) -> None:
        """An operator brings a new certificate, and restarts the agent so that it is used."""
        self.credential = self.world.authority.enrol(self.node_id, self.address)
        self.world.trace.say(self.name, "is enrolled again")
        self.kill_agent()
        self.start_agent()

    async def _run_agent(self, process: Process, life: Life) -> None:
        keeper = SimKeeper(self, self.world, process)
        transport = self.world.network.transport(self)
        loop = AgentLoop(
            node_id=self.node_id,
            life=life,
            transport=transport,
            keeper=keeper,
            inventory=self._inventory,
            clock=_LoopClock(),
            randomness=self._rng,
            heartbeat_interval_s=HEARTBEAT_S,
            reconnect_base_s=RECONNECT_BASE_S,
            reconnect_max_s=RECONNECT_MAX_S,
            version=llmgw.__version__,
        )
        certificates = CertificateKeeper(
            node_id=self.node_id,
            transport=transport,
            read=lambda: self.credential.pem,
            make_csr=make_csr,
            renew_after=renew_after,
            install=self._install,
            reload=transport.reload,
            now_s=self.wall,
            randomness=self._rng,
        )
        self.loop = loop
        await asyncio.sleep(self._rng.uniform(0.1, 1.0))
        await keeper.adopt()
        process.spawn(certificates.run())
        await loop.run()

    def _install(self, cert_pem: str, key_pem: str) -> None:
        before, self.credential = self.credential, Credential.of(cert_pem)
        self.world.trace.say(self.name, "has renewed its certificate")
        self.world.invariants.renewed(self, before, self.credential)

    # Hardware.

    def next_port(self) -> int:
        """A port that was not used lately."""
        self._port = 21000 + (self._port - 20999) % 1000
        return self._port

    def gpu_uuids(self) -> list[str]:
        return [f"{self.name}-gpu{index}" for index in range(self.plan.gpus)]

    def gpu_trouble(self, uuid: str) -> str | None:
        """Why a GPU cannot be used, or None."""
        if uuid in self.gpus_broken:
            return "it has an uncorrectable error"
        if uuid in self.gpus_foreign:
            return "pid 4711 (train.py) holds its memory"
        return None

    def usable_fabric(self, name: str) -> bool:
        return name in self.plan.fabrics and name not in self.fabrics_down

    def refusal(self, spec: ShardSpec) -> str | None:
        """Why the agent refuses a start, as admission does; None when it can run."""
        for uuid in spec.gpus:
            if uuid not in self.gpu_uuids():
                return f"GPU {uuid} is not on this node"
            trouble = self.gpu_trouble(uuid)
            if trouble is not None:
                return f"GPU {uuid} cannot be used: {trouble}"
        if spec.nodes > 1 and not self.usable_fabric(spec.fabric or ""):
            return f"fabric {spec.fabric} is not usable on this node"
        return None

    async def _inventory(self) -> Inventory:
        await asyncio.sleep(self._rng.uniform(0.0, INVENTORY_S_MAX))
        return Inventory(
            gpus=[
                Gpu(index=index, uuid=uuid, name="sim", usable=trouble is None, reason=trouble)
                for index, uuid in enumerate(self.gpu_uuids())
                for trouble in [self.gpu_trouble(uuid)]
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
