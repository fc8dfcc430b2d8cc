"""The simulated supervisor: shards as state machines, with records on the machine's disk that outlive the agent.

It promises what `llmgw.agent.supervisor` promises (that one is tested with real processes), no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmgw.agent.readiness import time_allowed
from llmgw.messages.agent import LIVE_PHASES, HeldShard, LogChunk, Progress, ShardPhase, ShardSpec
from tests.simulation.engines import Engine
from tests.simulation.plan import STOP_S_MAX

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.process import Process
    from tests.simulation.world import World

NOT_HELD_VERSION = 2**31 - 1
RENDEZVOUS_LOOK_S = 1.0
SPAWN_S_MAX = 0.4
DISK_S_MAX = 0.05
FETCHED_SHARE = 0.2
FETCH_S_MAX = 20.0
ORPHAN_ENDS_S_MAX = 3.0


@dataclass(eq=False)
class Record:
    """What the disk knows of one shard."""

    spec: ShardSpec
    boot: int
    phase: ShardPhase
    since: float
    received: float
    version: int = 1
    http_port: int | None = None
    rendezvous_port: int | None = None
    reason: str | None = None
    failure: str | None = None
    exit_code: int | None = None
    forgotten: bool = False
    engine: Engine | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def live(self) -> bool:
        return self.phase in LIVE_PHASES

    def held(self, now: float) -> HeldShard:
        return HeldShard(
            spec=self.spec,
            phase=self.phase,
            version=self.version,
            http_port=self.http_port,
            rendezvous_port=self.rendezvous_port,
            reason=self.reason,
            exit_code=self.exit_code,
            phase_age_s=now - self.since,
            # It shows more each time it is asked, and no deadline may move for that.
            progress=(
                Progress(what="load", note=f"{now:.0f}") if self.phase in ("fetching", "starting") else None
            ),
        )


class SimKeeper:
    """`Keeper` of one agent process."""

    def __init__(self, machine: Machine, world: World, process: Process) -> None:
        self._machine = machine
        self._world = world
        self._process = process
        self._records = machine.disk
        self._answers: dict[str, HeldShard] = {}
        """Stops of shards that nobody here knows, answered until the server has recorded them."""
        self._lock = asyncio.Lock()
        self._listener: Callable[[str], None] | None = None

    def listen(self, listener: Callable[[str], None]) -> None:
        self._listener = listener

    async def adopt(self) -> None:
        """Go on with what an earlier agent left."""
        async with self._lock:
            for record in list(self._records.values()):
                if not record.live:
                    continue
                record.stop = asyncio.Event()
                engine_lives = record.engine is not None and record.engine.alive
                if record.boot != self._machine.boot:
                    record.boot, record.received = self._machine.boot, self._world.now
                    record.failure = record.failure or "exited while no agent ran: the node was restarted"
                elif not (
                    record.phase == "stopping"
                    or engine_lives
                    or (record.phase in ("fetching", "waiting") and record.engine is None)
                ):
                    record.failure = record.failure or "exited while no agent was running"
                if record.failure is not None and record.phase != "stopping":
                    self._set(record, "stopping", record.failure)
                self._begin(record)
            await self._end_orphans()

    async def _end_orphans(self) -> None:
        """What carries our marker and no description covers is ended before the node registers."""
        for engine in list(self._machine.engines.values()):
            record = self._records.get(engine.spec.shard_id)
            if record is None or not record.live:
                await asyncio.sleep(self._world.rng.uniform(0.0, ORPHAN_ENDS_S_MAX))
                self._world.trace.say(self._machine.name, f"ends {engine.spec.shard_id}, which nothing describes")
                self._world.engines.end(engine, "no description covers it")

    async def held(self) -> list[HeldShard]:
        async with self._lock:
            now = self._world.now
            known = [record.held(now) for record in self._records.values() if not record.forgotten]
            return known + list(self._answers.values())

    async def start(self, spec: ShardSpec) -> None:
        async with self._lock:
            self._world.invariants.starting(self._machine, spec)
            if spec.shard_id in self._records:
                record = self._records[spec.shard_id]
                if not record.live:
                    record.forgotten = False
                return
            if spec.shard_id in self._answers:
                return
            stalls_s = max(0.0, self._machine.disk_stalls_until - self._world.now)
            await asyncio.sleep(stalls_s + self._world.rng.uniform(0.0, DISK_S_MAX))
            self._admit(spec)
        self._tell(spec.shard_id)

    async def stop(self, shard_id: str, reason: str) -> None:
        async with self._lock:
            record = self._records.get(shard_id)
            if record is None:
                nobody = ShardSpec(
                    shard_id=shard_id,
                    replica_id="-",
                    model="-",
                    profile="-",
                    profile_hash="",
                    served_names=[],
                    engine="-",
                )
                self._answers[shard_id] = HeldShard(
                    spec=nobody, phase="stopped", version=NOT_HELD_VERSION, reason="this agent does not hold it"
                )
            elif not record.live:
                record.forgotten = False
            elif not record.stop.is_set():
                record.stop.set()
                self._set(record, "stopping", reason)
        self._tell(shard_id)

    async def forget(self, shard_ids: list[str]) -> None:
        for shard_id in shard_ids:
            record = self._records.get(shard_id)
            if record is not None and not record.live:
                self._world.invariants.forgotten(self._machine, record.spec)
                record.forgotten = True
            self._answers.pop(shard_id, None)

    async def read_log(
        self, *, request_id: str, shard_id: str, stream: str, offset: int | None, lines: int
    ) -> LogChunk:
        return LogChunk(request_id=request_id, shard_id=shard_id, text="")

    # One shard's life.

    def _admit(self, spec: ShardSpec) -> None:
        now = self._world.now
        record = Record(
            spec,
            self._machine.boot,
            self._first_phase(spec),
            now,
            now,
        )
        self._records[spec.shard_id] = record
        if spec.rank == 0:
            record.http_port = self._machine.next_port()
            record.rendezvous_port = self._machine.next_port() if spec.nodes > 1 else None
        refusal = self._machine.refusal(spec)
        if refusal is not None:
            record.reason = refusal
            record.phase = "failed"
            self._trace(record)
            return
        self._trace(record)
        self._begin(record)

    def _first_phase(self, spec: ShardSpec) -> ShardPhase:
        if self._world.rng.random() < FETCHED_SHARE:
            return "fetching"
        return "waiting" if spec.rendezvous is not None else "starting"

    def _begin(self, record: Record) -> None:
        self._process.spawn(self._live(record))

    async def _live(self, record: Record) -> None:
        if record.phase == "stopping" and record.failure is None:
            record.stop.set()
        failure = record.failure or await self._until_trouble(record)
        if record.stop.is_set():
            await self._end_stopped(record)
        else:
            await self._fail(record, failure)

    async def _until_trouble(self, record: Record) -> str:
        """Run until something goes wrong or a stop is asked for."""
        spec = record.spec
        if record.phase == "fetching":
            if await _first(self._world.rng.uniform(1.0, FETCH_S_MAX), record.stop):
                return ""
            record.received = self._world.now  # the time for the fetch is the fetch's own
            self._set(record, "waiting" if spec.rendezvous is not None else "starting", None)
        deadline = record.received + spec.rendezvous_timeout_s
        while record.engine is None and spec.rendezvous is not None:
            if self._world.engines.leader_waits(spec.replica_id):
                break
            if self._world.now >= deadline:
                return f"the leader did not open its rendezvous port within {spec.rendezvous_timeout_s:g} s"
            if await _first(RENDEZVOUS_LOOK_S, record.stop):
                return ""
        if record.engine is None:
            # The record is written before the process is there: an agent that dies between leaves no engine.
            if await _first(self._world.rng.uniform(0.0, SPAWN_S_MAX), record.stop):
                return ""
            record.engine = self._world.engines.start(spec, self._machine, record.http_port)
            if record.phase == "waiting":
                self._set(record, "starting", None)
        engine = record.engine
        if record.phase != "ready":
            now = self._world.now
            began, limit_s = time_allowed(spec, record.phase, record.received, engine.started_at, now)
            if not await _first(max(0.0, began + limit_s - now), engine.ready, engine.ended, record.stop):
                return f"the engine did not answer within {limit_s:g} s"
            if engine.ended.is_set() or record.stop.is_set():
                return engine.exit_reason
            self._set(record, "ready", None)
        await _first(None, engine.ended, record.stop)
        return engine.exit_reason

    async def _fail(self, record: Record, failure: str) -> None:
        record.failure, record.exit_code = failure, 1
        if self._world.rng.random() < 0.3:
            # What is left of it takes a while to end.
            if record.phase != "stopping":
                self._set(record, "stopping", failure)
            await asyncio.sleep(self._world.rng.uniform(0.5, STOP_S_MAX))
        if record.engine is not None:
            self._world.engines.end(record.engine, "killed")
        await asyncio.sleep(0.05)
        self._set(record, "failed", failure)

    async def _end_stopped(self, record: Record) -> None:
        await asyncio.sleep(self._world.rng.choice([0.1, 1.0, STOP_S_MAX]))
        if record.engine is not None:
            self._world.engines.end(record.engine, "stopped")
        self._set(record, "stopped", record.reason)

    def _set(self, record: Record, phase: ShardPhase, reason: str | None) -> None:
        if record.stop.is_set() and phase in ("starting", "ready"):
            return
        record.phase, record.reason, record.since = phase, reason, self._world.now
        record.version += 1
        self._trace(record)
        self._tell(record.spec.shard_id)

    def _trace(self, record: Record) -> None:
        why = f" ({record.reason})" if record.reason else ""
        self._world.trace.say(self._machine.name, f"shard {record.spec.shard_id} {record.phase}{why}")

    def _tell(self, shard_id: str) -> None:
        if self._listener is not None:
            self._listener(shard_id)


async def _first(timeout_s: float | None, *events: asyncio.Event) -> bool:
    """Wait for any of the events; False when the time was over first."""
    if any(event.is_set() for event in events):
        return True
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return bool(done)
