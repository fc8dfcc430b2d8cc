"""What holds the event loop up is measured, and told apart from a machine without time for us."""

from __future__ import annotations

import asyncio
import time

import pytest

from llmgw.server import loop_watch
from llmgw.server.loop_watch import LoopWatch


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_long_computation_is_late_and_busy_and_one_that_waits_is_only_late() -> None:
    async def main() -> None:
        watch = LoopWatch()
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - as a machine that does something else
        await beats(watch)
        assert watch.longest().late_s > 0.25
        assert watch.longest().busy_s < 0.15
        compute(0.3)
        await beats(watch)
        assert watch.longest().busy_s > 0.25
        task.cancel()

    asyncio.run(main())


def test_a_pause_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "WINDOW_S", 0.1)

    async def main() -> None:
        watch = LoopWatch()
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        compute(0.5)
        await beats(watch)
        assert watch.longest().busy_s > 0.45
        async with asyncio.timeout(20):
            while watch.longest().busy_s > 0.45:  # noqa: ASYNC110 - time itself is what it waits for
                await asyncio.sleep(0.02)
        task.cancel()

    asyncio.run(main())


async def beats(watch: LoopWatch) -> None:
    await asyncio.sleep(2.5 * loop_watch.BEAT_S)
