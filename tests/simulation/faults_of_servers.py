"""Faults of the control process, the routers, and the clock of the host they run on."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.breaking import Breaker, Kind
from tests.simulation.server import WALL_S


class ServerFaults(Breaker):
    """Crashes, pauses, slowness, and time that jumps."""

    _resume: Callable[[], None] = staticmethod(lambda: None)

    def kinds(self) -> list[Kind]:
        return [
            (6, "server crash", self.crash),
            (3, "server pause", self._pause),
            (2, "wall clock jump", self._jump),
            (3, "router crash", self.crash_router),
            (2, "slow router", self._slow_router),
        ]

    def mend(self) -> None:
        world = self._world
        world.router.latency_s = 0.02
        world.server.wall_offset_s = WALL_S
        self._resume()
        world.server.start()

    def crash(self) -> None:
        """kill -9 of the server, and a new one after a while."""
        if not self._world.server.up:
            return
        down_s = self._rng.choice([0.5, 3.0, 20.0, 70.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("server crash", f"for {down_s:.1f} s")
        self._world.server.kill()
        self._world.later(down_s, self._world.server.start)

    def _pause(self) -> None:
        process = self._world.server.process
        if process is None or process.paused:
            return
        pause_s = self._rng.choice([2.0, 8.0, 40.0]) * self._rng.uniform(0.5, 1.5)
        self._fault("server pause", f"for {pause_s:.1f} s")
        process.pause()
        now, server = self._world.now, self._world.server
        server.paused_until = now + pause_s

        def resume() -> None:
            if process.paused:
                server.pauses.append((now, self._world.now))
                process.resume()

        self._resume = resume
        self._world.later(pause_s, resume)

    def _jump(self) -> None:
        jump_s = self._rng.choice([-3600.0, -5.0, 5.0, 400.0, 86400.0])
        self._fault("wall clock jump", f"by {jump_s:g} s")
        self._world.server.wall_offset_s += jump_s
        if self._rng.random() < 0.6:
            self._after(10.0, 90.0, self._set_right)

    def _set_right(self) -> None:
        self._world.trace.say("fault", "the server's wall clock is set right")
        self._world.server.wall_offset_s = WALL_S

    def crash_router(self) -> None:
        """The router's process dies."""
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
