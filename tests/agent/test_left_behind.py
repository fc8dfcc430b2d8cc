"""Engines that an agent with another work dir left on this node: named, counted, and not touched."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from llmgw.agent.children import Child, spawn
from llmgw.agent.left_behind import LOOK_EVERY_S, LeftBehinds, lock_holder
from llmgw.agent.main import lock_work_dir
from llmgw.agent.processes import read_markers
from llmgw.engines.base import ProcessPlan
from llmgw.messages.agent import Gpu, StartShard
from tests.agent.fakes import make_spec
from tests.agent.test_front_door import Site, end
from tests.agent.waiting import until

# All of the machine's processes are looked at, so that no other test's node or GPU may go by these names.
LOOK = f"look-{os.getpid()}"
NODE, OTHER_NODE = f"{LOOK}-node01", f"{LOOK}-node02"
GPUS = [Gpu(index=index, uuid=f"GPU-{LOOK}-{index}", name="test") for index in range(4)]


class Leaver:
    """Starts what an agent would start, and ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[Child] = []

    def __call__(self, shard_id: str, work_dir: Path, node_id: str, *gpus: str) -> int:
        work_dir.mkdir(exist_ok=True)
        plan = ProcessPlan(name="engine", argv=[sys.executable, "-c", "import time; time.sleep(60)"], env={})
        child = spawn(
            plan,
            shard_id=shard_id,
            work_dir=str(work_dir),
            node_id=node_id,
            gpus=gpus,
            folder=self.folder,
            log=self.folder / "log",
        )
        self.children.append(child)
        # The environment of a process can be read a moment after its exec has begun.
        deadline = time.monotonic() + 10
        while read_markers(child.identity.pid) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return child.identity.pid

    def end(self) -> None:
        for child in self.children:
            child.popen.kill()
            child.popen.wait()


@pytest.fixture
def leave(tmp_path: Path) -> Iterator[Leaver]:
    leaver = Leaver(tmp_path)
    yield leaver
    leaver.end()


def test_an_engine_of_another_work_dir_is_named_with_what_to_type_and_its_gpus_are_not_free(
    tmp_path: Path, leave: Leaver
) -> None:
    pid = leave("chat-1.0", tmp_path / "old", NODE, GPUS[1].uuid, GPUS[2].uuid)
    gpus, [finding] = LeftBehinds(NODE, str(tmp_path / "new")).take_out(GPUS)
    assert [gpu.uuid for gpu in gpus if gpu.usable] == [GPUS[0].uuid, GPUS[3].uuid]
    assert [gpu.unusable_kind for gpu in gpus] == [None, "held", "held", None]
    assert f"pid {pid}" in str(gpus[1].reason)
    assert (finding.check, finding.severity) == ("engine-left-behind", "error")
    assert "chat-1.0" in finding.what
    assert str(pid) in finding.what
    assert f"supervisor.work_dir {tmp_path}/old" in finding.remedy
    assert f"kill {pid}" in finding.remedy


def test_its_gpus_are_free_again_by_themselves_when_it_has_ended(tmp_path: Path, leave: Leaver) -> None:
    leave("chat-1.0", tmp_path / "old", NODE, GPUS[1].uuid)
    left = LeftBehinds(NODE, str(tmp_path / "new"))
    assert len(left.take_out(GPUS)[1]) == 1
    leave.end()
    assert left.take_out(GPUS) == (GPUS, [])


def test_one_that_holds_no_gpu_is_named_all_the_same(tmp_path: Path, leave: Leaver) -> None:
    leave("small-1.0", tmp_path / "old", NODE)
    gpus, [finding] = LeftBehinds(NODE, str(tmp_path / "new")).take_out(GPUS)
    assert gpus == GPUS
    assert finding.check == "engine-left-behind"


def test_the_own_ones_and_those_of_other_nodes_here_are_nobodys_business(tmp_path: Path, leave: Leaver) -> None:
    leave("mine-1.0", tmp_path / "new", NODE, GPUS[1].uuid)
    leave("other-1.0", tmp_path / "other", OTHER_NODE, f"GPU-of-{OTHER_NODE}")
    assert LeftBehinds(NODE, str(tmp_path / "new")).take_out(GPUS) == (GPUS, [])


def test_what_another_agent_tends_is_named_only_where_it_has_gpus_of_this_node(
    tmp_path: Path, leave: Leaver
) -> None:
    lock = lock_work_dir(str(tmp_path / "old"))
    try:
        assert lock_holder(tmp_path / "old" / "agent.lock") == os.getpid()
        leave("small-1.0", tmp_path / "old", NODE)
        now = [0.0]
        left = LeftBehinds(NODE, str(tmp_path / "new"), clock=lambda: now[0])
        assert left.take_out(GPUS) == (GPUS, [])
        leave("chat-1.0", tmp_path / "old", NODE, GPUS[1].uuid)
        now[0] += LOOK_EVERY_S
        gpus, [finding] = left.take_out(GPUS)
        assert not gpus[1].usable
        assert finding.check == "engine-of-another-agent"
        assert "skip_gpus" in finding.remedy
    finally:
        os.close(lock)


def test_an_agent_whose_work_dir_was_changed_says_what_the_old_one_left(tmp_path: Path) -> None:
    site = Site(tmp_path)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")

    async def test() -> None:
        async with site.serving() as port:
            config = site.write_config(port)
            agent = site.start_agent(config)
            spec = make_spec("r1-0", engine="llamacpp", source=str(model))
            site.commands.append(StartShard(seq=1, spec=spec))
            await until(lambda: site.phase("r1-0") in ("ready", "failed"), "the engine is ready", 20)
            pid = [each for report in site.reports for each in report.shards][-1].engine_pid
            site.commands.clear()
            await asyncio.to_thread(end, agent, signal.SIGTERM)

            content = yaml.safe_load(config.read_text())
            content["supervisor"]["work_dir"] = str(tmp_path / "elsewhere")
            config.write_text(yaml.safe_dump(content))
            before = len(site.registers)
            agent = site.start_agent(config)
            await until(lambda: len(site.registers) > before, "the next agent registers", 20)
            await asyncio.to_thread(end, agent, signal.SIGTERM)
            assert site.registers[-1].held == []
            # Engines of other tests on this machine may be left behind as well at this moment.
            [finding] = [
                each for each in site.registers[-1].inventory.findings if str(site.work_dir) in each.remedy
            ]
            assert finding.check == "engine-left-behind"
            assert f"pid {pid}" in finding.what

    try:
        asyncio.run(test())
    finally:
        site.end_engines()
