"""Engines that die badly: what they leave is ended before the shard is said to have failed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from llmgw.agent.processes import belonging, read_process
from llmgw.messages.agent import HeldShard
from tests.agent.fakes import make_spec
from tests.agent.test_adoption import agent_killed_when, work_dir  # noqa: F401
from tests.agent.test_supervisor import Running, alive, run, running
from tests.agent.waiting import until

LEAVES = ["has-core", "leaves-orphan"]


def left_behind(work_dir: Path) -> list[int]:  # noqa: F811
    folder = work_dir / "shards" / "r1-0" / "run"
    return [int((folder / name).read_text()) for name in ("core.pid", "orphan.pid")]


class Watching(Running):
    """Notes, at every transition that is told, which processes were still there."""

    def watch(self, pids: list[int]) -> None:
        self.alive_when_told: dict[str, list[int]] = {}

        def told(shard_id: str) -> None:
            for record in [*self.supervisor.live_records(), *self.supervisor._ended.values()]:
                self.alive_when_told[record.phase] = [pid for pid in pids if alive(pid)]

        self.supervisor.listen(told)


async def dies(node: Running, engine: HeldShard) -> HeldShard:
    pids = left_behind(node.work_dir)
    assert all(alive(pid) for pid in pids)
    watching = Watching(node.supervisor, node.work_dir)
    watching.watch(pids)
    assert engine.engine_pid is not None
    os.kill(engine.engine_pid, signal.SIGKILL)
    failed = await node.reach("failed")
    await until(lambda: "failed" in watching.alive_when_told, "it is told")
    assert watching.alive_when_told["failed"] == []
    return failed


def test_a_core_that_outlives_its_killed_engine_is_ended_before_the_shard_has_failed(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as node:
            await node.supervisor.start(make_spec("r1-0", *LEAVES))
            failed = await dies(node, await node.reach("ready"))
            assert failed.reason == "engine was killed by SIGKILL"

    run(test)


def test_the_same_of_an_adopted_engine_whose_parent_has_reaped_it(work_dir: Path) -> None:  # noqa: F811
    agent_killed_when(work_dir, "ready", *LEAVES)

    async def test() -> None:
        async with running(work_dir) as node:
            [adopted] = await node.supervisor.held()
            await dies(node, adopted)

    run(test)


def test_a_session_whose_leader_nobody_saw_end_is_not_taken_for_ours() -> None:
    leader = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    info = read_process(leader.pid)
    assert info is not None
    leader.wait()  # reaped: from now on its number is free, but for the session that has it
    try:
        recorded = [info.identity]
        assert belonging("r1-0", "/w", recorded) == []
        assert [one.pid for one in belonging("r1-0", "/w", recorded, watched=[leader.pid])] == [child]
    finally:
        os.kill(child, signal.SIGKILL)
        leader.stdout.close()
