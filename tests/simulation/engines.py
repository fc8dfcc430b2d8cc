"""Engines as they really are, whatever anybody believes: they load, serve, die, and leave others hanging."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgw.messages.agent import ShardSpec
from tests.simulation.plan import LOAD_S_MAX

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

WORKER_SETTLES_S = 1.0
Later = Callable[[float, Callable[[], None]], object]


class Engine:
    """The processes of one shard. They outlive the agent and die with the machine."""

    def __init__(self, spec: ShardSpec, machine: Machine, http_port: int | None) -> None:
        self.spec = spec
        self.machine = machine
        self.http_port = http_port
        self.alive = True
        self.started_at = machine.world.now
        self.serves_since: float | None = None
        """Virtual seconds; None while it answers nobody."""
        self.ready = asyncio.Event()
        """What the agent waits for: the leader answers, or the worker has settled."""
        self.ended = asyncio.Event()
        self.exit_reason = ""
        self.hung = False
        """It lives and makes no progress: requests run and probes go unanswered."""
        self.loaded = False

    @property
    def serving(self) -> bool:
        """True while it answers requests."""
        return self.serves_since is not None and not self.hung


class Engines:
    """All engines of the world, and what binds the ranks of a gang to each other."""

    def __init__(self, rng: random.Random, later: Later) -> None:
        self._rng = rng
        self._later = later
        self._gangs: dict[str, dict[int, Engine]] = {}
        self._listening: dict[tuple[str, int], Engine] = {}
        self.failing: set[str] = set()
        """Models whose starts fail."""
        self.slow = 1.0
        """How many times longer loading takes."""

    def start(self, spec: ShardSpec, machine: Machine, http_port: int | None) -> Engine:
        """A process is started; it loads when its whole gang is there."""
        engine = Engine(spec, machine, http_port)
        machine.engines[spec.shard_id] = engine
        gang = self._gangs.setdefault(spec.replica_id, {})
        gang[spec.rank] = engine
        if http_port is not None:
            self._listening[machine.name, http_port] = engine
        if spec.model in self.failing:
            self._later(self._rng.uniform(0.5, 10.0), lambda: self.end(engine, "engine exited with code 1"))
        if spec.rank > 0:
            self._later(WORKER_SETTLES_S, lambda: engine.alive and engine.ready.set())
        if len(gang) == spec.nodes:
            load_s = self._rng.uniform(0.5, LOAD_S_MAX) * self.slow
            self._later(load_s, lambda: self._loaded(spec.replica_id))
        return engine

    def end(self, engine: Engine, reason: str) -> None:
        """The processes of a shard are gone. The other ranks notice late, or never."""
        if not engine.alive:
            return
        engine.alive, engine.serves_since = False, None
        engine.exit_reason = reason
        engine.ended.set()
        engine.machine.engines.pop(engine.spec.shard_id, None)
        if engine.http_port is not None:
            self._listening.pop((engine.machine.name, engine.http_port), None)
        gang = self._gangs.get(engine.spec.replica_id, {})
        gang.pop(engine.spec.rank, None)
        for rank, other in gang.items():
            other.serves_since = None
            if rank == 0 or self._rng.random() < 0.5:
                notices_s = self._rng.choice([1.0, 5.0, 40.0])
                self._later(notices_s, lambda it=other: self.end(it, "a peer's connection closed"))
        if not gang:
            self._gangs.pop(engine.spec.replica_id, None)

    def hang(self, engine: Engine) -> None:
        """It makes no progress any more, be it that it loads or that it serves."""
        engine.hung = True

    def unhang(self, engine: Engine) -> None:
        """A long prefill was over, or whatever it was."""
        if not engine.hung:
            return
        engine.hung = False
        if engine.serves_since is not None:
            engine.serves_since = engine.machine.world.now
        if engine.loaded and engine.alive:
            self._loaded(engine.spec.replica_id)

    def leader_waits(self, replica_id: str) -> bool:
        """True while the leader's rendezvous port takes connections."""
        return 0 in self._gangs.get(replica_id, {})

    def at(self, machine: Machine | None, port: int) -> Engine | None:
        """The engine that listens there."""
        return self._listening.get((machine.name, port)) if machine is not None else None

    def gangs_over(self, machine: Machine) -> list[Engine]:
        """Leaders of the replicas of several nodes that have a shard on this machine."""
        replicas = [engine.spec.replica_id for engine in machine.engines.values() if engine.spec.nodes > 1]
        return [leader for replica in replicas if (leader := self._gangs.get(replica, {}).get(0)) is not None]

    def reach_again(self) -> None:
        """A port is up again: gangs of which no rank is cut off go on where they were."""
        for gang in self._gangs.values():
            leader = gang.get(0)
            if leader is None or not leader.ready.is_set() or leader.serves_since is not None:
                continue
            cut = any(engine.machine.fabrics_down for engine in gang.values())
            if len(gang) == leader.spec.nodes and not cut:
                leader.serves_since = leader.machine.world.now

    def _loaded(self, replica_id: str) -> None:
        gang = self._gangs.get(replica_id, {})
        leader = gang.get(0)
        if leader is not None and len(gang) == leader.spec.nodes and not leader.ready.is_set():
            leader.loaded = True
            if leader.hung:
                return
            leader.serves_since = leader.machine.world.now
            leader.ready.set()
