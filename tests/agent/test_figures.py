"""An agent reads its engines' load, and takes no harm from one that tells nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from llmgw.agent.figures import FAILED_READINGS, watch_figures
from llmgw.agent.record_keeper import RecordKeeper
from llmgw.agent.spec_store import ShardRecord, SpecStore
from llmgw.engines.figures import FigureNames
from llmgw.engines.registry import adapter
from llmgw.messages.agent import EngineFigures
from tests.agent.fakes import make_spec
from tests.engines.running import sim_engine

LONG = {"prompt": "hello", "max_tokens": 30_000, "ignore_eos": True}


def watched(
    port: int,
    until: Callable[[EngineFigures | None], bool],
    key: str | None = None,
    told: Callable[[str | None], bool] = lambda problem: True,
) -> list[str | None]:
    """Watch until a reading is as it must be; fails after a while. Returns what was told of every reading."""
    problems: list[str | None] = []

    async def run() -> None:
        found = asyncio.Event()

        def show(figures: EngineFigures | None, problem: str | None) -> None:
            problems.append(problem)
            if until(figures) and told(problem):
                found.set()

        watch = asyncio.create_task(
            watch_figures("127.0.0.1", port, key, adapter("sim").figures, show, every_s=0.02)
        )
        try:
            async with asyncio.timeout(10):
                await found.wait()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    asyncio.run(run())
    return problems


def test_what_runs_and_what_waits_is_seen_and_that_it_ended() -> None:
    with sim_engine("--max-num-seqs", "1", "--tokens-per-s", "100") as running:
        port = running.port()
        leave = threading.Event()

        def ask() -> None:
            with (
                httpx.Client(trust_env=False, timeout=90) as client,
                client.stream("POST", f"{running.url()}/v1/completions", json={**LONG, "stream": True}),
            ):
                leave.wait(30)

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        watched(port, lambda said: said is not None and (said.running, said.waiting) == (1, 2))
        leave.set()
        for thread in threads:
            thread.join(10)
        watched(port, lambda said: said is not None and (said.running, said.waiting) == (0, 0))


def test_an_engine_that_is_gone_or_tells_nothing_is_no_reading() -> None:
    with sim_engine() as running:
        port = running.port()
        asyncio.run(
            asyncio.wait_for(watch_figures("127.0.0.1", port, None, FigureNames(), lambda said, why: None), 5)
        )  # there is nothing to look for
    watched(port, lambda said: said is None)


def test_rates_and_what_the_prefix_cache_had_are_of_the_last_readings() -> None:
    with sim_engine("--tokens-per-s", "2000") as running:
        words = " ".join(f"word{number}" for number in range(320))
        body = {"prompt": words, "max_tokens": 400, "ignore_eos": True}
        over = threading.Event()

        def ask() -> None:
            with httpx.Client(trust_env=False, timeout=90) as client:
                while not over.is_set():
                    client.post(f"{running.url()}/v1/completions", json=body).raise_for_status()

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()

        def busy(said: EngineFigures | None) -> bool:
            if said is None or not said.prefix_hits or not said.tokens_per_s or not said.prompt_tokens_per_s:
                return False
            return said.prefix_hits > 0.5 and said.tokens_per_s > 100 and said.preemptions_per_s is None

        try:
            watched(running.port(), busy)
        finally:
            over.set()
            asking.join(10)
        watched(
            running.port(), lambda said: said is not None and said.tokens_per_s == 0.0 and not said.prefix_hits
        )


def test_an_engine_that_fails_to_tell_several_times_in_a_row_is_told_of_until_it_tells_again() -> None:
    with sim_engine() as running:
        port = running.port()
        watched(port, lambda said: said is not None, told=lambda problem: problem is None)
        running.kill()
        problems = watched(port, lambda said: said is None, told=lambda problem: problem is not None)
    assert problems == [None] * (FAILED_READINGS - 1) + ["could not be read (ConnectError)"]


def test_figures_ride_on_the_shards_status_with_their_age_until_its_next_transition(tmp_path: Path) -> None:
    clock = [100.0]

    async def run() -> None:
        record = ShardRecord(spec=make_spec("a-0"), boot_id="b", phase="ready")
        keeper = RecordKeeper(record, SpecStore(tmp_path), now_boot_s=lambda: clock[0], told=lambda: None)
        keeper.show_figures(EngineFigures(running=2, waiting=1))
        clock[0] = 103.0
        version = keeper.held().version
        assert keeper.held().figures == EngineFigures(running=2, waiting=1, age_s=3.0)
        assert keeper.held().version == version, "no transition"
        keeper.show_figures(None, "did not come within 2 s")
        assert (keeper.held().figures, keeper.held().figures_problem) == (None, "did not come within 2 s")
        await keeper.transition("stopping")
        assert (keeper.held().figures, keeper.held().figures_problem) == (None, None)
        await keeper.saved()

    asyncio.run(run())
