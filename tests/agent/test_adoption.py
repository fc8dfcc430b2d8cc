"""An engine outlives its agent, and the next agent goes on with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from llmgw.agent import processes
from llmgw.agent.processes import (
    ProcessIdentity,
    boot_id,
    is_alive,
    read_marker,
    read_process,
    send_signal,
    uncovered,
)
from llmgw.agent.spec_store import SavedProcess, ShardRecord, SpecStore
from llmgw.agent.supervisor import now_boot_s
from tests.agent.fakes import make_config, make_spec, make_supervisor
from tests.agent.test_supervisor import PORTS, alive, run, running
from tests.agent.waiting import wait_until

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture
def work_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "work"
    for info in uncovered(os.path.realpath(tmp_path / "work"), []):
        os.kill(info.pid, signal.SIGKILL)


def agent_killed_when(work_dir: Path, phase: str, *words: str) -> int | None:
    """Supervise a shard in a process of its own, kill -9 that at `phase`, and give the engine's pid."""
    agent = subprocess.Popen(
        [sys.executable, "-m", "tests.agent.supervise", str(work_dir), PORTS, *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert agent.stdout is not None
    try:
        for line in agent.stdout:
            now, _, pid = line.partition(" ")
            if now == phase == "waiting":
                return None
            if now == phase and pid.strip() != "None":
                # What is said is on disk a moment later, and on a busy machine not at once.
                wait_until(
                    lambda: (record := read_record(work_dir)).processes and record.phase in (phase, "ready"),
                    "the engine's pid and its phase are on disk",
                )
                return int(pid)
        raise AssertionError(f"the agent ended before its shard was {phase}")
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()


def read_record(work_dir: Path) -> ShardRecord:
    path = work_dir / "shards" / "r1-0" / "shard.json"
    return msgspec.json.decode(path.read_bytes(), type=ShardRecord)


def test_a_ready_engine_keeps_its_pid_its_phase_and_its_output_under_the_next_agent(work_dir: Path) -> None:
    pid = agent_killed_when(work_dir, "ready")
    assert pid is not None
    assert alive(pid)
    before = read_record(work_dir)

    async def test() -> None:
        async with running(work_dir) as node:
            [adopted] = await node.supervisor.held()
            assert (adopted.phase, adopted.engine_pid, adopted.version) == ("ready", pid, before.version)
            assert adopted.http_port == before.http_port
            assert adopted.spec == before.spec
            await node.supervisor.start(adopted.spec)
            assert (await node.reach("ready")).engine_pid == pid
            await node.supervisor.stop("r1-0", "end of test")
            stopped = await node.reach("stopped")
            assert stopped.exit_code is None
            assert not alive(pid)

    run(test)


def test_a_shard_that_begins_while_orphans_are_looked_for_is_none(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    markers = {"LLMGW_SHARD": "r1-0", "LLMGW_WORK_DIR": os.path.realpath(work_dir)}
    began = subprocess.Popen(["sleep", "600"], env={**os.environ, **markers}, start_new_session=True)
    read_processes = processes.read_processes

    async def test() -> None:
        supervisor = make_supervisor(make_config(work_dir, port_range=PORTS))
        walks: list[int] = []

        def in_the_middle() -> dict[int, processes.ProcessInfo]:
            table = read_processes()
            walks.append(len(table))
            if len(walks) == 2:  # the first has found something to end
                supervisor._shards["r1-0"] = None  # type: ignore[assignment]
            return table

        monkeypatch.setattr(processes, "read_processes", in_the_middle)
        await supervisor.adopt()
        del supervisor._shards["r1-0"]
        await supervisor.close()

    wait_until(lambda: read_marker(began.pid) is not None, "the process has its environment")
    try:
        run(test)
        assert alive(began.pid)
    finally:
        began.kill()
        began.wait()


def test_an_agent_that_ends_in_order_leaves_its_engine_running_too(work_dir: Path) -> None:
    async def test() -> None:
        async with running(work_dir) as node:
            await node.supervisor.start(make_spec())
            pid = (await node.reach("ready")).engine_pid
            assert pid is not None
            await node.supervisor.close()
            assert alive(pid)

    run(test)


def test_an_engine_that_still_loads_is_adopted_with_its_deadline_running_on(work_dir: Path) -> None:
    pid = agent_killed_when(work_dir, "starting", "loads-for-ever")
    record = read_record(work_dir)
    assert record.started_boot_s is not None
    # As if it had been started 19.5 of its 20 seconds ago.
    SpecStore(work_dir / "shards").save(
        msgspec.structs.replace(record, started_boot_s=now_boot_s() - 19.5, serial=record.serial + 1)
    )

    async def test() -> None:
        async with running(work_dir) as node:
            [adopted] = await node.supervisor.held()
            assert (adopted.phase, adopted.engine_pid) == ("starting", pid)
            failed = await node.reach("failed", deadline_s=5)
            assert "did not answer within 20 s of loading" in (failed.reason or "")

    run(test)


def test_an_adopted_engine_that_dies_is_seen_within_a_second(work_dir: Path) -> None:
    pid = agent_killed_when(work_dir, "ready")
    assert pid is not None

    async def test() -> None:
        async with running(work_dir) as node:
            os.kill(pid, signal.SIGKILL)
            failed = await node.reach("failed", deadline_s=1.0)
            assert (failed.reason or "").startswith("engine exited (its code is unknown")
            assert failed.exit_code is None
            assert "engine serves" in failed.output_tail

    run(test)


def test_an_engine_that_died_with_no_agent_fails_and_its_orphans_are_ended(work_dir: Path) -> None:
    pid = agent_killed_when(work_dir, "ready", "leaves-orphan")
    assert pid is not None
    orphan = int((work_dir / "shards" / "r1-0" / "run" / "orphan.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), "the engine is gone")
    assert alive(orphan)

    async def test() -> None:
        async with running(work_dir) as node:
            failed = await node.reach("failed")
            assert failed.reason == "exited while no agent was running"
            assert not alive(orphan)

    run(test)


def test_a_worker_that_waited_for_its_leader_waits_on(work_dir: Path) -> None:
    assert agent_killed_when(work_dir, "waiting", "rank=1") is None

    async def test() -> None:
        async with running(work_dir) as node:
            [adopted] = await node.supervisor.held()
            assert adopted.phase == "waiting"

    run(test)


def test_marked_processes_that_nothing_describes_are_ended_and_those_of_other_work_dirs_are_not(
    work_dir: Path, tmp_path: Path
) -> None:
    def marked(folder: Path) -> subprocess.Popen[bytes]:
        # Its child has no marker of its own; it is ended as a descendant.
        return subprocess.Popen(
            ["/bin/sh", "-c", "env -i sleep 600 & wait"],
            env={**os.environ, "LLMGW_SHARD": "gone", "LLMGW_WORK_DIR": os.path.realpath(folder)},
            start_new_session=True,
        )

    ours, theirs = marked(work_dir), marked(tmp_path / "other")
    try:

        def children() -> list[int]:
            found = [read_process(int(name)) for name in os.listdir("/proc") if name.isdigit()]
            return [info.pid for info in found if info and info.ppid == ours.pid]

        wait_until(children, "the shell has started its child")
        [child] = children()

        async def test() -> None:
            async with running(work_dir):
                assert not alive(ours.pid)
                assert not alive(child)
                assert alive(theirs.pid)

        run(test)
    finally:
        for process in (ours, theirs):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def test_a_pid_that_was_reused_is_neither_adopted_nor_killed(work_dir: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        info = read_process(stranger.pid)
        assert info is not None
        saved = SavedProcess(name="engine", pid=stranger.pid, start_ticks=info.start_ticks - 1)
        SpecStore(work_dir / "shards").save(
            ShardRecord(spec=make_spec(), boot_id=boot_id(), phase="ready", version=2, processes=[saved])
        )

        async def test() -> None:
            async with running(work_dir) as node:
                failed = await node.reach("failed")
                assert failed.reason == "exited while no agent was running"
                assert alive(stranger.pid)

        run(test)
        assert not send_signal(ProcessIdentity(stranger.pid, info.start_ticks - 1), signal.SIGKILL)
        assert is_alive(info.identity)
    finally:
        stranger.kill()
        stranger.wait()


def test_after_a_reboot_everything_has_ended_and_the_reason_says_so(work_dir: Path) -> None:
    info = read_process(os.getpid())
    assert info is not None
    # This very process, under its true start time: only the boot tells that it is not the engine.
    saved = SavedProcess(name="engine", pid=info.pid, start_ticks=info.start_ticks)
    SpecStore(work_dir / "shards").save(
        ShardRecord(spec=make_spec(), boot_id="another-boot", phase="ready", version=2, processes=[saved])
    )

    async def test() -> None:
        async with running(work_dir) as node:
            failed = await node.reach("failed")
            assert failed.reason == "exited while no agent was running: the node was restarted"
            assert failed.version > 2

    run(test)


def test_a_stop_under_way_goes_on_under_the_next_agent(work_dir: Path) -> None:
    pid = agent_killed_when(work_dir, "ready")
    assert pid is not None
    record = read_record(work_dir)
    SpecStore(work_dir / "shards").save(
        msgspec.structs.replace(record, phase="stopping", reason="drained", serial=record.serial + 1)
    )

    async def test() -> None:
        async with running(work_dir) as node:
            stopped = await node.reach("stopped")
            assert stopped.reason == "drained"
            assert not alive(pid)

    run(test)


def test_a_description_that_cannot_be_read_is_set_aside_and_the_rest_is_adopted(work_dir: Path) -> None:
    store = SpecStore(work_dir / "shards")
    store.save(ShardRecord(spec=make_spec("good"), boot_id=boot_id(), phase="failed", reason="old"))
    broken = work_dir / "shards" / "broken"
    broken.mkdir()
    (broken / "shard.json").write_text('{"spec":')

    async def test() -> None:
        async with running(work_dir) as node:
            assert [shard.spec.shard_id for shard in await node.supervisor.held()] == ["good"]
            assert (broken / "shard.unreadable").exists()
            await asyncio.sleep(0)

    run(test)
