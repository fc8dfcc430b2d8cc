"""The memory of this node's GPUs as shards need it: free before an engine starts, released after it ended.

It reads, waits and remembers what was left behind. It ends nothing: processes of strangers are named, no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from llmgw.agent.gpu_holders import identifier
from llmgw.agent.gpu_judgement import (
    Identify,
    Judgement,
    Leftover,
    is_known,
    judge_gpus,
    why_not_released,
    why_occupied,
)
from llmgw.agent.processes import ProcessIdentity
from llmgw.agent.spec_store import ShardRecord
from llmgw.hardware.gpu_processes import GpuProcesses
from llmgw.hardware.gpus import GpuReading
from llmgw.messages.agent import Gpu

log = structlog.get_logger("agent")

RELEASE_LIMIT_S = 30.0
"""How long a shard's end waits for the memory of its GPUs after its last process has gone."""
FREE_LIMIT_S = 60.0
"""How long a start waits for GPUs that something else holds."""
# In a replica of several nodes the other ranks wait meanwhile: the one that knows the reason gives up first.
RENDEZVOUS_SHARE = 0.5
# A driver that says nothing for so long will not say more later.
UNKNOWN_PATIENCE_S = 5.0
LOOK_FIRST_S = 0.1
# However little time is left: a look takes what the driver takes, a second or more where there are many GPUs.
LOOK_LEAST_S = 5.0
LOOK_MAX_S = 2.0
# Shorter waits are ordinary, and not worth a report.
SAY_AFTER_S = 1.0


@dataclass(frozen=True)
class Waited:
    """How waiting for free GPUs ended: memory in use now by UUID (MiB, where known), or why it was given up."""

    used_mib: dict[str, int]
    problem: str | None = None


class GpuMemory:
    """One node's. `read` is blocking and raises nothing; at most one reading runs for all who wait."""

    def __init__(
        self,
        read: Callable[[], GpuReading],
        *,
        work_dir: str,
        release_limit_s: float = RELEASE_LIMIT_S,
        free_limit_s: float = FREE_LIMIT_S,
    ) -> None:
        """`work_dir` is the real path that the shards' marker carries."""
        self._read = read
        self._work_dir = work_dir
        self._release_limit_s = release_limit_s
        self._free_limit_s = free_limit_s
        self._lock = asyncio.Lock()
        self._reading = GpuReading()
        self._began_s: float | None = None
        self._records: Callable[[], list[ShardRecord]] = list
        self._leftovers: dict[str, Leftover] = {}
        self._occupied: dict[str, str] = {}

    def attend(self, records: Callable[[], list[ShardRecord]]) -> None:
        """Ask `records` for the live shards, from whatever thread."""
        self._records = records

    def claims(self) -> dict[str, str]:
        """UUID → live shard, at this moment."""
        return {uuid: record.spec.shard_id for record in self._records() for uuid in record.spec.gpus}

    def occupied(self, uuid: str) -> bool:
        """True when the newest inventory calls this GPU whole and held by others: they may let go of it."""
        return uuid in self._occupied

    def judge(self, gpus: list[Gpu], processes: GpuProcesses, claims_before: Mapping[str, str]) -> Judgement:
        """Judge a reading for the inventory. A GPU counts as a shard's when it was so before the reading or is
        so now: else the memory of a shard that has just ended would be taken for a stranger's. Blocking.
        """
        claims = {**claims_before, **self.claims()}
        judgement = judge_gpus(
            gpus, processes, claims=claims, leftovers=dict(self._leftovers), identify=self._identify()
        )
        self._occupied = judgement.occupied
        for uuid, leftover in list(self._leftovers.items()):
            if uuid not in claims and uuid not in judgement.occupied and self._leftovers.get(uuid) is leftover:
                log.info("GPU memory that a shard had left is free", gpu=uuid, shard=leftover.shard_id)
                del self._leftovers[uuid]
        return judgement

    def remember(self, record: ShardRecord) -> None:
        """Watch GPUs whose memory an ended shard of this boot left in use."""
        for uuid in record.unreleased:
            self._leftovers[uuid] = Leftover(record.spec.shard_id, record.gpu_used_before_mib.get(uuid))

    async def wait_free(self, record: ShardRecord, *, on_held: Callable[[str], None]) -> Waited:
        """Until nothing else holds the shard's GPUs, or the time is over. `on_held` is told once why it waits."""
        loop = asyncio.get_running_loop()
        limit_s = self._free_limit_s
        if record.spec.nodes > 1:
            limit_s = min(limit_s, RENDEZVOUS_SHARE * record.spec.rendezvous_timeout_s)
        deadline = loop.time() + limit_s
        pause_s = LOOK_FIRST_S
        told = False
        reasons: list[str] = []
        while True:
            reading = await self._look(max(LOOK_LEAST_S, deadline - loop.time()))
            mine = [gpu for gpu in reading.gpus if gpu.uuid in record.spec.gpus]
            if mine:  # else the driver said nothing, and what it said before stands
                reasons = await asyncio.to_thread(self._occupants, record, reading)
            if not reasons:
                used = {gpu.uuid: gpu.memory_used_mib for gpu in mine if gpu.memory_used_mib is not None}
                return Waited(used)
            if loop.time() >= deadline:
                return Waited(
                    {},
                    f"its GPUs were not free within {limit_s:g} s: {'; '.join(reasons)}; end what "
                    "holds them, or name them in discovery.skip_gpus of agent.yaml",
                )
            if not told:
                told = True
                on_held("waits for GPU memory: " + "; ".join(reasons))
            await asyncio.sleep(pause_s)
            pause_s = min(LOOK_MAX_S, pause_s * 1.5)

    async def wait_released(self, record: ShardRecord, *, on_held: Callable[[str], None]) -> dict[str, str]:
        """Until what an ended shard held is free: nothing, or UUID → what still holds it when time is over.

        `on_held` is told once when it takes longer than a moment. A shard that started nothing held nothing;
        a driver that answers nothing is not waited for in vain.
        """
        if not record.spec.gpus or record.started_boot_s is None:
            return {}
        loop = asyncio.get_running_loop()
        began = loop.time()
        pause_s = LOOK_FIRST_S
        told = False
        held: dict[str, str] | None = None
        while True:
            waited_s = loop.time() - began
            reading = await self._look(max(LOOK_LEAST_S, self._release_limit_s - waited_s))
            known, remains = await asyncio.to_thread(self._remains, record, reading)
            if known or remains:  # else the driver said nothing, and what it said before stands
                held = remains
            waited_s = loop.time() - began
            if known and not held:
                return {}
            if held is None and waited_s >= min(UNKNOWN_PATIENCE_S, self._release_limit_s):
                log.warning("whether GPU memory was released cannot be read", shard=record.spec.shard_id)
                return {}
            if waited_s >= self._release_limit_s:
                return held or {}
            if held and not told and waited_s >= SAY_AFTER_S:
                told = True
                on_held("its processes have ended; waits for GPU memory: " + "; ".join(held.values()))
            await asyncio.sleep(pause_s)
            pause_s = min(LOOK_MAX_S, pause_s * 1.5)

    async def _look(self, limit_s: float) -> GpuReading:
        """A reading that began after this call; an empty one when it takes longer than `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                asked_s = asyncio.get_running_loop().time()
                async with self._lock:
                    if self._began_s is None or self._began_s < asked_s:
                        began_s = asyncio.get_running_loop().time()
                        self._reading = await asyncio.to_thread(self._read)
                        self._began_s = began_s
                    return self._reading
        except TimeoutError:
            return GpuReading()

    def _occupants(self, record: ShardRecord, reading: GpuReading) -> list[str]:
        identify = self._identify()
        reasons = []
        for gpu in reading.gpus:
            if gpu.uuid in record.spec.gpus:
                why = why_occupied(gpu, reading.processes.of(gpu.uuid), self._leftovers.get(gpu.uuid), identify)
                if why is not None:
                    reasons.append(f"GPU {gpu.index} is not free: {why}")
        return reasons

    def _remains(self, record: ShardRecord, reading: GpuReading) -> tuple[bool, dict[str, str]]:
        """(whether anything can be told, UUID → what holds it still)."""
        assert record.started_boot_s is not None
        identify = self._identify()
        known, held = False, {}
        for gpu in reading.gpus:
            if gpu.uuid not in record.spec.gpus:
                continue
            holders = reading.processes.of(gpu.uuid)
            known = known or is_known(gpu, holders)
            why = why_not_released(
                gpu,
                holders,
                shard_began_boot_s=record.started_boot_s,
                used_before_mib=record.gpu_used_before_mib.get(gpu.uuid),
                identify=identify,
            )
            if why is not None:
                held[gpu.uuid] = why
        return known, held

    def _identify(self) -> Identify:
        leaders = [
            (ProcessIdentity(process.pid, process.start_ticks), record.spec.shard_id)
            for record in self._records()
            for process in record.processes
        ]
        return identifier(self._work_dir, leaders)
