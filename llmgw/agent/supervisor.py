"""All shards of a node: starting, stopping, adopting, and the truth about them for the server.

One lock guards starting, and the list for a registration is taken under it, so that a list is never older
than a start that was answered.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from llmgw.agent.admission import Admission, InventorySource, Refused
from llmgw.agent.ending import end_processes
from llmgw.agent.gpu_memory import GpuMemory
from llmgw.agent.held import engine_lives, held_shard
from llmgw.agent.logs import LogError, LogPiece, read_piece, streams_of
from llmgw.agent.processes import ProcessIdentity, ProcessInfo, boot_id, is_alive, uncovered
from llmgw.agent.run_folder import run_folder
from llmgw.agent.scopes import Scopes
from llmgw.agent.shard import Shard, ShardHost
from llmgw.agent.spec_store import ShardRecord, SpecStore, is_shard_id
from llmgw.agent.weights.keeper import Weights
from llmgw.config.agent import AgentConfig
from llmgw.engines.base import EngineAdapter, LaunchPlan
from llmgw.hardware.engine_user import Account
from llmgw.messages.agent import (
    SHARDS_PER_NODE_MAX,
    HeldShard,
    ListWeights,
    LogChunk,
    RemoveWeights,
    ShardSpec,
    WeightsAnswer,
)
from llmgw.metrics.family import OTHER

log = structlog.get_logger("agent")

ENDED_KEPT_MAX = 50
# Beside the ended ones, a registration holds at most 256 shards.
LIVE_MAX = SHARDS_PER_NODE_MAX - ENDED_KEPT_MAX
WARNINGS_MAX = 16
FAILED_MODELS_MAX = 256
ORPHANS_TERM_S = 2.0
ORPHANS_WAIT_S = 15.0
# The version of an answer for a shard that this agent has never seen: it comes after all that were ever said.
NOT_HELD_VERSION = 2**31 - 1


def now_boot_s() -> float:
    """Seconds since boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def real_work_dir(config: AgentConfig) -> str:
    """The work dir as the marker carries it: it must read the same whichever way an operator spells it."""
    return os.path.realpath(config.supervisor.work_dir)


class Supervisor:
    """Keeps the shards of one node. Call `adopt` first, and `close` last; neither touches a healthy engine."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        address: str,
        adapter: Callable[[str], EngineAdapter],
        inventory: InventorySource,
        gpu_memory: GpuMemory,
        mgmt_interface: str | None = None,
        base_env: dict[str, str] | None = None,
        account: Account | None = None,
        scopes: Scopes | None = None,
        refusal: str | None = None,
        carried: Callable[[], dict[str, int]] = dict,
    ) -> None:
        """`adapter` gives an engine's adapter by its name and raises ValueError with a sentence.

        Engines run as `account` (None: as this process's user) and in `scopes` where there are any. `refusal` is
        a sentence that says why nothing may be started at all; what runs is kept all the same. `carried` reads
        the data counters of the node's adapters.
        """
        self.work_dir = real_work_dir(config)
        self._store = SpecStore(Path(self.work_dir) / "shards")
        self._boot_id = boot_id()
        self._weights = Weights(config, boot_id=self._boot_id, now_boot_s=now_boot_s)
        self._admission = Admission(
            config=config,
            address=address,
            adapter=adapter,
            inventory=inventory,
            may_be_freed=gpu_memory.occupied,
            weights=self._weights,
            mgmt_interface=mgmt_interface,
            base_env=dict(os.environ) if base_env is None else base_env,
            account=account,
            refusal=refusal,
        )
        self._host = ShardHost(
            node_id=config.node_id,
            address=address,
            work_dir=self.work_dir,
            store=self._store,
            stop_timeout_s=config.supervisor.stop_timeout,
            health_interval_s=config.supervisor.health_interval,
            log_lines=config.supervisor.log_lines,
            gpu_memory=gpu_memory,
            account=account,
            scopes=scopes,
            figures=lambda engine: adapter(engine).figures,
            carried=carried,
            weights=self._weights,
            now_boot_s=now_boot_s,
            changed=self._changed,
        )
        self._lock = asyncio.Lock()
        self._shards: dict[str, Shard] = {}
        self._ended: dict[str, ShardRecord] = {}
        self.failures: Counter[str] = Counter()
        """Model → shards that failed since this agent began; beyond `FAILED_MODELS_MAX` together."""
        self._listener: Callable[[str], None] | None = None
        self._behind: set[asyncio.Future[None]] = set()
        self._gpu_memory = gpu_memory
        self._scopes = scopes
        gpu_memory.attend(self.live_records)

    def listen(self, listener: Callable[[str], None]) -> None:
        """Have `listener` told of every transition, by shard id."""
        self._listener = listener

    async def adopt(self) -> None:
        """Go on with what an earlier agent left: living engines in their phase, dead ones as failed.

        Ends processes that carry this work dir's marker and that no description covers.
        """
        async with self._lock:
            records, problems = await asyncio.to_thread(self._store.load)
            for problem in problems:
                log.error(problem)
            for record in records:
                if record.live:
                    await self._take_over(record)
                else:
                    self._ended[record.spec.shard_id] = record
                    if record.boot_id == self._boot_id:
                        self._gpu_memory.remember(record)
            await self._end_orphans()
        self._prune()

    async def start(self, spec: ShardSpec) -> None:
        """Hold this shard. Returns when its spec is on disk; an id that is or was held changes nothing.

        What cannot run is held as `failed` with the reason. Cancelling the caller does not undo a start.
        """
        await asyncio.shield(asyncio.ensure_future(self._start(spec)))

    async def stop(self, shard_id: str, reason: str) -> None:
        """End a shard: recorded when this returns, complete when it is reported as `stopped`."""
        await asyncio.shield(asyncio.ensure_future(self._stop(shard_id, reason)))

    async def held(self) -> list[HeldShard]:
        """Everything held, in whatever phase; ended ones until the server has them recorded."""
        async with self._lock:
            live = [shard.held() for shard in self._shards.values()]
            now = now_boot_s()
            ended = [held_shard(record, now) for record in self._ended.values() if not record.forgotten]
            return live + ended

    async def forget(self, shard_ids: list[str]) -> None:
        """Report these ended shards no longer. Their output is kept a while for whoever asks."""
        for shard_id in shard_ids:
            shard = self._shards.get(shard_id)
            if shard is not None and not shard.record.live:
                await shard.ended()  # told already, and about to be written
            record = self._ended.get(shard_id)
            if record is not None and not record.forgotten:
                await self._remember(msgspec.structs.replace(record, forgotten=True, serial=record.serial + 1))
        self._prune()

    async def read_log(
        self, *, request_id: str, shard_id: str, stream: str, offset: int | None, lines: int
    ) -> LogChunk:
        """A piece of a shard's output; `error` is a sentence when there is none."""
        if not is_shard_id(shard_id) or not (shard_id in self._shards or shard_id in self._ended):
            error = f"this node holds no shard {shard_id!r} and keeps no output of it"
            return LogChunk(request_id=request_id, shard_id=shard_id, error=error)
        folder = self._store.folder(shard_id)
        record = self._shards[shard_id].record if shard_id in self._shards else self._ended[shard_id]
        try:
            piece = await asyncio.to_thread(
                read_piece, folder, stream, offset=offset, lines=lines, secret=record.api_key
            )
            streams = await asyncio.to_thread(streams_of, folder)
        except LogError as exc:
            error = self._removed_log(shard_id, stream) or str(exc)
            return LogChunk(request_id=request_id, shard_id=shard_id, error=error)
        return LogChunk(
            request_id=request_id,
            shard_id=shard_id,
            offset=piece.offset,
            next_offset=piece.next_offset,
            text=piece.text,
            streams=streams,
        )

    def _removed_log(self, shard_id: str, stream: str) -> str | None:
        """A sentence when the process that writes this stream runs, and its file is gone."""
        shard = self._shards.get(shard_id)
        for process in shard.record.processes if shard is not None else []:
            if process.name == stream and is_alive(ProcessIdentity(process.pid, process.start_ticks)):
                return (
                    f"somebody removed the file that {stream} writes to, and what it said is lost; what it says "
                    f"now can be read on the node at /proc/{process.pid}/fd/1 until it ends"
                )
        return None

    def live_records(self) -> list[ShardRecord]:
        """The live shards as they stand. From any thread."""
        # A copy first: another thread may ask while a shard begins or ends.
        return [record for shard in list(self._shards.values()) if (record := shard.record).live]

    def read_output(self, shard_id: str, offset: int) -> LogPiece:
        """The next piece of what a shard's engine wrote. Blocking, from any thread. Raises LogError."""
        return read_piece(self._store.folder(shard_id), "engine", offset=offset, lines=0)

    def ports_held(self) -> set[int]:
        """Ports of live shards, in use already or not yet. From any thread."""
        return {port for record in self.live_records() for port in record.ports}

    async def weights(self, command: ListWeights | RemoveWeights) -> WeightsAnswer:
        """What lies in the weights folder, after what nobody needs was removed from it."""
        return await self._weights.answer(
            command, lambda: {record.spec.shard_id: record.spec.source for record in self.live_records()}
        )

    async def close(self) -> None:
        """Let go of everything and leave all processes running, for the next agent to adopt."""
        async with self._lock:
            await asyncio.gather(*(shard.leave() for shard in self._shards.values()))
            await self._weights.close()
            for task in self._behind:
                task.cancel()
            await asyncio.gather(*self._behind, return_exceptions=True)

    async def _start(self, spec: ShardSpec) -> None:
        async with self._lock:
            if spec.shard_id in self._shards:
                return
            if spec.shard_id in self._ended:
                await self._say_again(spec.shard_id)
                return
            record = ShardRecord(
                spec=spec,
                boot_id=self._boot_id,
                phase="waiting" if spec.rendezvous is not None else "starting",
                phase_since_boot_s=now_boot_s(),
                received_boot_s=now_boot_s(),
                serial=1,
            )
            if await self._weights.missing(spec):
                record = msgspec.structs.replace(record, phase="fetching")
            try:
                record, plan = await self._admit(record)
            except Refused as exc:
                log.warning("shard refused", shard=spec.shard_id, reason=str(exc))
                record = msgspec.structs.replace(record, phase="failed", reason=str(exc), ended_at_s=time.time())
                self._count(record)
                await self._remember(record)
            else:
                self._begin(record, plan)
        self._tell(spec.shard_id)
        self._prune()

    async def _admit(self, record: ShardRecord) -> tuple[ShardRecord, LaunchPlan]:
        """Ports, a key and a plan for the shard, and its description on disk. Raises Refused."""
        if len(self._shards) >= LIVE_MAX:
            raise Refused(f"this node holds {len(self._shards)} shards already, which is the most it keeps")
        if not is_shard_id(record.spec.shard_id):
            raise Refused(f"{record.spec.shard_id!r} is not a shard id that can name a folder")
        live = self.live_records()
        record = await self._admission.equip(record, live, list(self._ended.values()))
        folder = self._store.folder(record.spec.shard_id)
        plan = await self._admission.plan(record, live, run_folder(folder))
        record = msgspec.structs.replace(record, warnings=plan.warnings[:WARNINGS_MAX])
        try:
            await asyncio.to_thread(self._store.save, record)
        except OSError as exc:
            raise Refused(
                f"the shard's description cannot be written to {folder}: {exc.strerror}; "
                "look at the disk that holds supervisor.work_dir"
            ) from None
        return record, plan

    async def _stop(self, shard_id: str, reason: str) -> None:
        async with self._lock:
            shard = self._shards.get(shard_id)
            if shard is not None:
                await shard.stop(reason)
            elif shard_id in self._ended:
                await self._say_again(shard_id)
            else:
                # Never seen, or long forgotten: the answer is still `stopped`, and a late start changes nothing.
                spec = ShardSpec(
                    shard_id=shard_id,
                    replica_id="-",
                    model="-",
                    profile="-",
                    profile_hash="",
                    served_names=[],
                    engine="-",
                )
                self._ended[shard_id] = ShardRecord(
                    spec=spec,
                    boot_id=self._boot_id,
                    phase="stopped",
                    version=NOT_HELD_VERSION,
                    phase_since_boot_s=now_boot_s(),
                    ended_at_s=time.time(),
                    reason="this agent does not hold it",
                )
                self._tell(shard_id)

    async def _take_over(self, record: ShardRecord) -> None:
        """Adopt one shard of an earlier agent. The lock is held."""
        same_boot = record.boot_id == self._boot_id
        plan: LaunchPlan | None = None
        failure = record.failure
        if not same_boot:
            # Pids and clocks of another boot mean nothing here.
            now = now_boot_s()
            record = msgspec.structs.replace(
                record,
                boot_id=self._boot_id,
                processes=[],
                phase_since_boot_s=now,
                received_boot_s=now,
                started_boot_s=None,
            )
        if record.phase == "stopping" or failure is not None:
            pass  # its end goes on
        elif not same_boot:
            failure = "exited while no agent was running: the node was restarted"
        elif engine_lives(record):
            pass
        elif record.phase in ("fetching", "waiting") and not record.processes:
            live = self.live_records()
            try:
                plan = await self._admission.plan(
                    record, live, run_folder(self._store.folder(record.spec.shard_id))
                )
            except Refused as exc:
                failure = str(exc)
        elif not any(one.name == "engine" for one in record.processes):
            failure = "the agent ended before it had started the engine"
        else:
            failure = "exited while no agent was running"
        if failure is not None:
            record = msgspec.structs.replace(
                record, phase="stopping", reason=failure, failure=failure, version=record.version + 1
            )
        log.info("shard adopted", shard=record.spec.shard_id, phase=record.phase, reason=failure)
        self._begin(record, plan)

    def _begin(self, record: ShardRecord, plan: LaunchPlan | None) -> None:
        shard = Shard(record, self._host, plan)
        self._shards[record.spec.shard_id] = shard
        shard.begin()

    async def _end_orphans(self) -> None:
        """End what carries our marker and nothing describes; what resists is fought behind the scenes."""
        described = set(self._shards)

        def orphans() -> list[ProcessInfo]:
            # Read behind the walk: a shard that begins in the middle of it is described before it has a process.
            ours = (shard_id for shards in (described, self._shards) for shard_id in set(shards))
            return uncovered(self.work_dir, ours, scopes=self._scopes)

        found = await asyncio.to_thread(orphans)
        if not found:
            return
        log.warning("ending processes that no description covers", pids=[info.pid for info in found])
        ending = asyncio.ensure_future(end_processes(orphans, grace_s=ORPHANS_TERM_S))
        self._behind.add(ending)
        ending.add_done_callback(self._behind.discard)
        await asyncio.wait({ending}, timeout=ORPHANS_WAIT_S)

    def _changed(self, shard: Shard) -> None:
        """A shard made a transition (called in the event loop)."""
        record = shard.record
        if not record.live:
            self._count(record)
            self._gpu_memory.remember(record)
            self._shards.pop(record.spec.shard_id, None)
            self._ended[record.spec.shard_id] = record
            self._prune()
        self._tell(record.spec.shard_id)

    def _count(self, record: ShardRecord) -> None:
        model = record.spec.model
        if record.phase == "failed":
            known = model in self.failures or len(self.failures) < FAILED_MODELS_MAX
            self.failures[model if known else OTHER] += 1

    def _tell(self, shard_id: str) -> None:
        if self._listener is not None:
            self._listener(shard_id)

    async def _say_again(self, shard_id: str) -> None:
        """An ended shard is named again by the server: report how it ended, and do nothing else."""
        record = self._ended[shard_id]
        if record.forgotten:
            await self._remember(msgspec.structs.replace(record, forgotten=False, serial=record.serial + 1))
        self._tell(shard_id)

    async def _remember(self, record: ShardRecord) -> None:
        """Keep an ended shard in memory, and on disk as far as the disk allows."""
        shard_id = record.spec.shard_id
        self._ended[shard_id] = record
        if is_shard_id(shard_id) and record.version != NOT_HELD_VERSION:
            try:
                await asyncio.to_thread(self._store.save, record)
            except OSError as exc:
                log.error("a shard's description cannot be written", shard=shard_id, error=exc.strerror)

    def _prune(self) -> None:
        """Keep the last ended shards; forgotten ones go first."""
        surplus = len(self._ended) - ENDED_KEPT_MAX
        if surplus <= 0:
            return
        oldest = sorted(self._ended.values(), key=lambda one: (not one.forgotten, one.ended_at_s or 0.0))
        for record in oldest[:surplus]:
            shard_id = record.spec.shard_id
            del self._ended[shard_id]
            if is_shard_id(shard_id):
                removal = asyncio.ensure_future(asyncio.to_thread(self._store.remove, shard_id))
                self._behind.add(removal)
                removal.add_done_callback(self._behind.discard)
