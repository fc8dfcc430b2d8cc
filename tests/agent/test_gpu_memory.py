"""GPU memory around a shard's life, with real processes that hold a simulated node's memory."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from llmgw.agent.gpu_judgement import CLOCK_SLACK_S, Judgement
from llmgw.agent.gpu_memory import GpuMemory
from llmgw.agent.processes import read_process, uncovered
from llmgw.agent.supervisor import Supervisor, now_boot_s, real_work_dir
from llmgw.hardware.gpu_processes import GpuProcesses
from llmgw.hardware.gpus import GpuReading, read_gpus
from llmgw.messages.agent import Gpu, HeldShard, Inventory, ShardSpec
from llmgw.sim.hardware import SimulatedHardware, hold_gpu_memory, write_hardware
from tests.agent.fakes import FixedInventory, held_one, make_config, make_spec, make_supervisor
from tests.agent.waiting import until
from tests.hardware.nodes import discovery_of

_LOW = 20000 + os.getpid() % 40 * 300
PORTS = f"{_LOW}-{_LOW + 299}"


class Node:
    """A supervisor on simulated GPUs, whose inventory is judged as the agent judges it."""

    def __init__(self, folder: Path, *, read: Callable[[], GpuReading] | None = None, **limits: float) -> None:
        self.hardware: SimulatedHardware = write_hardware(folder / "hw", gpus=2, node="node01")
        discovery = discovery_of(self.hardware)
        self.read = read or (lambda: read_gpus(discovery))
        self.release = folder / "release"
        self.work_dir = folder / "work"
        self.config = make_config(self.work_dir, port_range=PORTS)
        self.memory = GpuMemory(self.read, work_dir=real_work_dir(self.config), **limits)
        self.supervisor: Supervisor = make_supervisor(self.config, inventory=self, gpu_memory=self.memory)

    def judged(self) -> Judgement:
        claims = self.memory.claims()
        reading = self.read()
        return self.memory.judge(reading.gpus, reading.processes, claims)

    async def latest(self) -> Inventory:
        return await self.fresh()

    async def fresh(self) -> Inventory:
        return Inventory(gpus=(await asyncio.to_thread(self.judged)).gpus)

    async def gpu(self) -> Gpu:
        return (await self.fresh()).gpus[0]

    def spec(self, shard_id: str, *words: str) -> ShardSpec:
        uuid = self.hardware.gpu_uuids[0]
        env = {"LEAK_USED": str(self.hardware.directory / "used" / uuid), "LEAK_RELEASE": str(self.release)}
        return make_spec(shard_id, *words, gpus=[uuid], env=env)

    def leak_pid(self, shard_id: str) -> int:
        return int((self.work_dir / "shards" / shard_id / "run" / "leak.pid").read_text())

    async def reach(self, shard_id: str, phase: str, words: str = "") -> HeldShard:
        return await reach(self.supervisor, shard_id, phase, words)


async def reach(supervisor: Supervisor, shard_id: str, phase: str, words: str = "") -> HeldShard:
    """The shard as soon as it is in that phase with those words in its reason."""

    async def seen() -> HeldShard:
        while True:
            shard = await held_one(supervisor, shard_id)
            if shard.phase == phase and words in (shard.reason or ""):
                return shard
            assert shard.phase not in ("stopped", "failed"), f"{shard.phase}: {shard.reason}"
            await asyncio.sleep(0.02)

    return await asyncio.wait_for(seen(), 15)


@asynccontextmanager
async def node(folder: Path, **options: object) -> AsyncIterator[Node]:
    one = Node(folder, **options)  # type: ignore[arg-type]
    await one.supervisor.adopt()
    try:
        yield one
    finally:
        one.release.touch()
        await one.supervisor.close()
        for info in uncovered(os.path.realpath(one.work_dir), []):
            os.kill(info.pid, signal.SIGKILL)


@contextmanager
def stranger(hardware: SimulatedHardware, mib: int = 20480) -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else that holds memory of GPU 0."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "--secret=x"]) as process:
        hold_gpu_memory(hardware.directory, hardware.gpu_uuids[:1], mib, process.pid)
        try:
            yield process
        finally:
            process.kill()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), 40)

    asyncio.run(limited())


def alive(pid: int) -> bool:
    info = read_process(pid)
    return info is not None and info.alive


def test_a_stop_is_complete_only_when_memory_that_escaped_with_a_child_is_free(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path) as one:
            await one.supervisor.start(one.spec("r1-0", "leaks-memory"))
            await one.reach("r1-0", "ready")
            await one.supervisor.stop("r1-0", "scaled down")
            held = await one.reach("r1-0", "stopping", "waits for GPU memory")
            pid = one.leak_pid("r1-0")
            assert held.reason is not None
            assert held.reason.startswith("scaled down; ")
            assert f"GPU 0 is held by process {pid} (" in held.reason
            assert alive(pid)  # named, and not touched
            one.release.touch()
            stopped = await one.reach("r1-0", "stopped")
            assert stopped.reason == "scaled down"
            assert (await one.gpu()).usable

    run(test)


def test_a_failure_too_is_reported_when_the_memory_is_free(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path) as one:
            await one.supervisor.start(one.spec("r1-0", "leaks-memory", "dies"))
            held = await one.reach("r1-0", "stopping", "waits for GPU memory")
            assert "engine exited with code 3" in (held.reason or "")
            one.release.touch()
            failed = await one.reach("r1-0", "failed")
            assert failed.reason == "engine exited with code 3"
            assert failed.exit_code == 3

    run(test)


def test_when_the_wait_is_over_the_end_names_the_holder_and_the_gpu_is_out_of_use_until_it_lets_go(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with node(tmp_path, release_limit_s=0.5) as one:
            await one.supervisor.start(one.spec("r1-0", "leaks-memory"))
            await one.reach("r1-0", "ready")
            await one.supervisor.stop("r1-0", "scaled down")
            stopped = await one.reach("r1-0", "stopped", "memory is still in use")
            pid = one.leak_pid("r1-0")
            assert f"process {pid} (" in (stopped.reason or "")
            gpu = await one.gpu()
            assert not gpu.usable
            assert f"process {pid} (" in (gpu.reason or "")
            assert "since shard r1-0 ended" in (gpu.reason or "")
            # A restarted agent knows it from the shard's description.
            await one.supervisor.close()
            memory = GpuMemory(one.read, work_dir=real_work_dir(one.config))
            again = make_supervisor(one.config, inventory=one, gpu_memory=memory)
            await again.adopt()
            judged = memory.judge((reading := one.read()).gpus, reading.processes, {})
            assert "since shard r1-0 ended" in (judged.gpus[0].reason or "")
            one.release.touch()
            await until(lambda: not alive(pid), "the helper lets go")
            assert (await one.gpu()).usable

    run(test)


def test_a_stop_does_not_wait_for_a_stranger_who_was_there_first(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path, free_limit_s=20) as one:
            with stranger(one.hardware, mib=2000):
                # Older than the shard by more than the kernel's clock is coarse.
                born = now_boot_s()
                await until(lambda: now_boot_s() > born + 2 * CLOCK_SLACK_S, "the stranger is older")
                await one.supervisor.start(one.spec("r1-0"))
                await one.reach("r1-0", "ready")
                began = asyncio.get_running_loop().time()
                await one.supervisor.stop("r1-0", "scaled down")
                stopped = await one.reach("r1-0", "stopped")
                assert asyncio.get_running_loop().time() - began < 15
                assert stopped.reason == "scaled down"

    run(test)


def test_a_start_waits_for_a_predecessor_s_memory_and_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path, release_limit_s=0.2) as one:
            await one.supervisor.start(one.spec("r1-0", "leaks-memory"))
            await one.reach("r1-0", "ready")
            await one.supervisor.stop("r1-0", "replaced")
            await one.reach("r1-0", "stopped")
            await one.supervisor.start(one.spec("r2-0"))
            waiting = await one.reach("r2-0", "waiting", "waits for GPU memory: GPU 0 is not free")
            assert waiting.engine_pid is None
            assert "since shard r1-0 ended" in (waiting.reason or "")
            one.release.touch()
            ready = await one.reach("r2-0", "ready")
            assert ready.reason is None

    run(test)


def test_a_start_that_waits_in_vain_fails_with_the_holder_s_name_and_can_be_stopped_before(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with node(tmp_path, free_limit_s=1.0) as one:
            with stranger(one.hardware) as process:
                await one.supervisor.start(one.spec("r1-0"))
                failed = await one.reach("r1-0", "failed")
                reason = failed.reason or ""
                assert reason.startswith("its GPUs were not free within 1 s: GPU 0 is not free")
                assert f"process {process.pid} (" in reason
                assert "with 20480 MiB" in reason
                assert "secret" not in reason
                assert process.poll() is None
        async with node(tmp_path / "b") as one:
            with stranger(one.hardware):
                await one.supervisor.start(one.spec("r2-0"))
                await one.reach("r2-0", "waiting")
                await one.supervisor.stop("r2-0", "no longer wanted")
                assert (await one.reach("r2-0", "stopped")).reason == "no longer wanted"

    run(test)


def test_a_rank_that_waits_in_vain_gives_up_before_the_others_give_up_on_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path) as one:
            with stranger(one.hardware):
                spec = one.spec("r1-0")
                leader = msgspec.structs.replace(spec, nodes=2, fabric=None, rendezvous_timeout_s=1.0)
                await one.supervisor.start(leader)
                failed = await one.reach("r1-0", "failed")
                assert "its GPUs were not free within 0.5 s" in (failed.reason or "")

    run(test)


def test_a_waiting_start_is_gone_on_with_by_the_next_agent(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path) as one:
            with stranger(one.hardware):
                await one.supervisor.start(one.spec("r1-0"))
                await one.reach("r1-0", "waiting")
                await one.supervisor.close()
                memory = GpuMemory(one.read, work_dir=real_work_dir(one.config))
                one.memory, one.supervisor = memory, make_supervisor(one.config, inventory=one, gpu_memory=memory)
                await one.supervisor.adopt()
                await one.reach("r1-0", "waiting")
            await one.reach("r1-0", "ready")

    run(test)


def test_memory_that_no_process_is_named_for_is_waited_for_too(tmp_path: Path) -> None:
    used = {"mib": 300}
    gpus = [Gpu(index=n, uuid=f"GPU-{n}", name="x", memory_total_mib=80000) for n in range(4)]

    def read() -> GpuReading:
        first = Gpu(index=0, uuid="GPU-0", name="x", memory_total_mib=80000, memory_used_mib=used["mib"])
        return GpuReading(gpus=[first, *gpus[1:]], processes=GpuProcesses())

    async def test() -> None:
        config = make_config(tmp_path, port_range=PORTS)
        memory = GpuMemory(read, work_dir=real_work_dir(config))
        supervisor = make_supervisor(config, inventory=FixedInventory(), gpu_memory=memory)
        await supervisor.adopt()
        await supervisor.start(make_spec(gpus=["GPU-0"]))
        try:
            await reach(supervisor, "r1-0", "ready")
            used["mib"] = 60000
            await supervisor.stop("r1-0", "scaled down")
            await reach(supervisor, "r1-0", "stopping", "60000 MiB in use, 300 before the shard began")
            used["mib"] = 400
            await reach(supervisor, "r1-0", "stopped")
        finally:
            await supervisor.close()

    run(test)


def test_a_driver_that_says_nothing_does_not_hold_up_a_stop_for_long(tmp_path: Path) -> None:
    async def test() -> None:
        config = make_config(tmp_path, port_range=PORTS)
        memory = GpuMemory(GpuReading, work_dir=real_work_dir(config), release_limit_s=0.3)
        supervisor = make_supervisor(config, gpu_memory=memory)
        await supervisor.adopt()
        await supervisor.start(make_spec(gpus=["GPU-0"]))
        try:
            await reach(supervisor, "r1-0", "ready")
            await supervisor.stop("r1-0", "scaled down")
            await reach(supervisor, "r1-0", "stopped")
            assert (await held_one(supervisor)).reason == "scaled down"
        finally:
            await supervisor.close()

    run(test)


def test_a_driver_that_is_slow_or_silent_at_the_end_frees_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path, release_limit_s=0.5, free_limit_s=4.0) as one:
            read, manner = one.read, "quick"

            def driver() -> GpuReading:
                if manner == "silent":
                    return GpuReading()
                if manner == "slow":
                    time.sleep(0.4)
                return read()

            one.memory._read = driver
            await one.supervisor.start(one.spec("r1-0", "leaks-memory"))
            await one.reach("r1-0", "ready")
            manner = "slow"
            await one.supervisor.stop("r1-0", "scaled down")
            await one.reach("r1-0", "stopped", "memory is still in use")
            await one.supervisor.start(one.spec("r2-0"))
            await one.reach("r2-0", "waiting", "waits for GPU memory")
            manner = "silent"
            assert "not free within" in ((await one.reach("r2-0", "failed")).reason or "")

    run(test)


def test_a_shard_s_own_memory_never_makes_its_gpu_a_stranger_s(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path) as one:
            await one.supervisor.start(one.spec("r1-0"))
            ready = await one.reach("r1-0", "ready")
            assert ready.engine_pid is not None
            hold_gpu_memory(one.hardware.directory, one.hardware.gpu_uuids[:1], 60000, ready.engine_pid)
            judged = await asyncio.to_thread(one.judged)
            assert (judged.gpus[0].usable, judged.findings) == (True, [])
            with stranger(one.hardware, mib=9000) as process:
                judged = await asyncio.to_thread(one.judged)
                assert judged.gpus[0].usable
                assert [finding.check for finding in judged.findings] == ["gpu-shared"]
                assert f"process {process.pid} (" in judged.findings[0].what
                assert str(ready.engine_pid) not in judged.findings[0].what

    run(test)
