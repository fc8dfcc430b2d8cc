"""Large request bodies do not make the router take memory from the system again and again."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.router.conftest import Scenario
from tests.router.support import Fleet, RouterProcess, plain, post

BODY = b'{"model":"m","image":"' + b"A" * (7 * 1024 * 1024) + b'"}'
PAGES = len(BODY) // 4096


def pages_taken(router: RouterProcess) -> int:
    """How often the process touched a page that it did not have (minflt, proc(5))."""
    return int(Path(f"/proc/{router.process.pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_a_large_body_gets_the_memory_that_one_before_left(play, router: RouterProcess) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain())
        for _ in range(3):
            assert (await fleet.ask(post(BODY))).status == 200
        before = pages_taken(router)
        for _ in range(4):
            assert (await fleet.ask(post(BODY))).status == 200
        # Left alone it is about as many for every two of them.
        assert pages_taken(router) - before < PAGES // 2

    run: Scenario = scenario
    play(run)
