"""Shards whose weights are fetched first: their phases, their progress, and what interrupts them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llmgw.agent.processes import uncovered
from llmgw.agent.supervisor import Supervisor
from tests.agent.fakes import held_one, make_config, make_spec, make_supervisor
from tests.agent.file_server import FileServer
from tests.agent.test_supervisor import PORTS, Running, run
from tests.agent.waiting import until

CONTENT = b"GGUF" + os.urandom(1_000_000)
PART = 300_000


@pytest.fixture
def files() -> Iterator[FileServer]:
    with FileServer(CONTENT) as server:
        yield server


@asynccontextmanager
async def node(work_dir: Path) -> AsyncIterator[Running]:
    supervisor = make_supervisor(make_config(work_dir, port_range=PORTS))
    await supervisor.adopt()
    try:
        yield Running(supervisor, work_dir)
    finally:
        await supervisor.close()
        for info in uncovered(os.path.realpath(work_dir), []):
            os.kill(info.pid, signal.SIGKILL)


async def fetched_so_far(supervisor: Supervisor, count: int, shard_id: str = "r1-0") -> None:
    while True:
        shard = await held_one(supervisor, shard_id)
        assert shard.phase == "fetching", shard
        if shard.progress is not None and shard.progress.done_bytes == count:
            return
        await asyncio.sleep(0.02)


def test_a_shard_fetches_before_it_starts_and_progress_is_no_transition(
    files: FileServer, tmp_path: Path
) -> None:
    async def test() -> None:
        files.held_after = PART
        async with node(tmp_path) as here:
            await here.supervisor.start(make_spec(source=files.url()))
            await asyncio.wait_for(fetched_so_far(here.supervisor, PART), 10)
            shard = await held_one(here.supervisor)
            assert (shard.phase, shard.version, shard.engine_pid) == ("fetching", 1, None)
            assert shard.progress is not None
            assert (shard.progress.what, shard.progress.total_bytes) == ("weights", len(CONTENT))
            assert here.told == ["r1-0"]
            files.gate.set()
            ready = await here.reach("ready")
            assert ready.progress is None
            assert ready.version == 3  # fetching, starting, ready
            await here.supervisor.start(make_spec("r2-0", source=files.url()))
            again = await here.reach("ready", "r2-0")
            assert again.version == 2
            assert len(files.asked) == 1

    run(test)


def test_the_next_agent_goes_on_with_the_download_of_a_shard(files: FileServer, tmp_path: Path) -> None:
    async def test() -> None:
        files.held_after = PART
        async with node(tmp_path) as first:
            await first.supervisor.start(make_spec(source=files.url()))
            await asyncio.wait_for(fetched_so_far(first.supervisor, PART), 10)
        files.gate.set()
        async with node(tmp_path) as second:
            assert (await held_one(second.supervisor)).phase in ("fetching", "starting", "ready")
            await second.reach("ready")
            assert [headers.get("range") for _, headers in files.asked] == [None, f"bytes={PART}-"]

    run(test)


def test_a_stop_in_the_middle_of_a_download_ends_both_at_once(files: FileServer, tmp_path: Path) -> None:
    async def test() -> None:
        files.held_after = PART
        async with node(tmp_path) as here:
            await here.supervisor.start(make_spec(source=files.url()))
            await asyncio.wait_for(fetched_so_far(here.supervisor, PART), 10)
            await here.supervisor.stop("r1-0", "scaled down")
            stopped = await here.reach("stopped", deadline_s=3)
            assert (stopped.reason, stopped.progress) == ("scaled down", None)

    run(test)


def test_a_download_that_starts_over_says_so_on_the_shard(files: FileServer, tmp_path: Path) -> None:
    def change() -> None:
        if len(files.asked) == 2:
            files.etag, files.content = '"two"', b"GGUF" + os.urandom(900_000)
            files.held_after = PART

    async def test() -> None:
        files.cuts = [PART]
        files.before = change
        async with node(tmp_path) as here:
            await here.supervisor.start(make_spec(source=files.url()))

            await until(lambda: len(here.told) == 2, "it is told a second time")
            shard = await held_one(here.supervisor)
            assert (shard.phase, shard.version) == ("fetching", 2)
            assert "has changed at its source" in (shard.reason or "")
            files.gate.set()
            assert (await here.reach("ready")).reason is None

    run(test)


def test_what_cannot_be_fetched_fails_the_shard_with_the_sentence(files: FileServer, tmp_path: Path) -> None:
    async def test() -> None:
        files.always = (404, {}, b"")
        async with node(tmp_path) as here:
            await here.supervisor.start(make_spec(source=files.url()))
            await until(lambda: len(here.told) >= 2, "it ends")
            shard = await held_one(here.supervisor)
            assert shard.phase == "failed"
            assert "does not exist (404); check the source" in (shard.reason or "")

    run(test)


def test_a_path_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    async def test() -> None:
        async with node(tmp_path) as here:
            await here.supervisor.start(make_spec(source=f"{tmp_path}/gone.gguf"))
            shard = await held_one(here.supervisor)
            assert (shard.phase, shard.version) == ("failed", 1)
            assert "does not exist on this node" in (shard.reason or "")
            await here.supervisor.start(make_spec("r2-0", source="org/name"))
            await here.reach("ready", "r2-0")

    run(test)
