"""Faults of engines: they crash, load slowly or fail while they do, and hang, one or many at a time."""

from __future__ import annotations

from tests.simulation.breaking import Breaker, Kind
from tests.simulation.engines import Engine
from tests.simulation.plan import HUNG_FOR_EVER_MAX

LAST_BLOW_SHARE = 0.25
"""How often many engines hang as everything else is mended."""


class EngineFaults(Breaker):
    """What engines do by themselves."""

    def kinds(self) -> list[Kind]:
        return [
            (8, "engine crash", self._crash),
            (4, "engine hang", self._hang),
            (2, "many hang", self._hang_many),
            (2, "failing model", self._fail_model),
            (2, "slow loading", self._slow_loading),
        ]

    def mend(self) -> None:
        engines = self._world.engines
        engines.failing.clear()
        engines.slow = 1.0
        if self._rng.random() < LAST_BLOW_SHARE:
            leaders = self._leaders()
            for leader in self._rng.sample(leaders, min(len(leaders), HUNG_FOR_EVER_MAX)):
                self._fault("many hang", f"{leader.spec.shard_id} for ever")
                engines.hang(leader)
        # Some hang for ever: only being given up brings their replicas back.
        for engine in [engine for engine in self._engines() if engine.hung][HUNG_FOR_EVER_MAX:]:
            engines.unhang(engine)

    def _engines(self) -> list[Engine]:
        return [engine for machine in self._world.machines.values() for engine in machine.engines.values()]

    def _leaders(self) -> list[Engine]:
        return [engine for engine in self._engines() if engine.spec.rank == 0 and not engine.hung]

    def _crash(self) -> None:
        engines = self._engines()
        if engines:
            engine = self._rng.choice(engines)
            self._fault("engine crash", engine.spec.shard_id)
            self._world.engines.end(engine, "engine ended by SIGSEGV")

    def _hang(self) -> None:
        leaders = self._leaders()
        if leaders:
            # A prefill of a minute survives; what shows nothing for longer than all limits does not.
            lasts_s = self._rng.choice([8.0, 40.0, 80.0, 400.0]) * self._rng.uniform(0.5, 1.5)
            self._stop(self._rng.choice(leaders), "engine hang", lasts_s)

    def _hang_many(self) -> None:
        """A driver, a file server: what they all wait for."""
        leaders = self._leaders()
        lasts_s = self._rng.choice([50.0, 400.0])
        if len(leaders) > 1:
            for leader in self._rng.sample(leaders, self._rng.randint(2, len(leaders))):
                self._stop(leader, "many hang", lasts_s + self._rng.uniform(0.0, 5.0))

    def _stop(self, engine: Engine, kind: str, lasts_s: float) -> None:
        self._fault(kind, f"{engine.spec.shard_id} for {lasts_s:.1f} s")
        self._world.engines.hang(engine)
        self._after(lasts_s, lasts_s, lambda: self._world.engines.unhang(engine))

    def _fail_model(self) -> None:
        model = self._rng.choice(self._world.plan.catalog.models).name
        self._fault("failing model", model)
        self._world.engines.failing.add(model)
        self._after(10, 120, lambda: self._world.engines.failing.discard(model))

    def _slow_loading(self) -> None:
        self._fault("slow loading")
        self._world.engines.slow = 8.0

        def mend() -> None:
            self._world.engines.slow = 1.0

        self._after(20, 90, mend)
