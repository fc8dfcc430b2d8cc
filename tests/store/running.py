"""What the store's tests share: a loop with a deadline, and programs in processes of their own."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 30.0 * PATIENCE
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2  # linux/capability.h
_PR_CAPBSET_DROP = 24  # linux/prctl.h


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an asynchronous test on a loop of its own, with a deadline."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            await asyncio.wait_for(test(*args, **kwargs), DEADLINE_S)

        asyncio.run(main())

    # pytest looks through __wrapped__ for fixtures; the coroutine must not be seen.
    return run


async def until(condition: Callable[[], bool], timeout_s: float = 10.0 * PATIENCE) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition is anything at all
            await asyncio.sleep(0.005)


def start(program: str, *args: object) -> subprocess.Popen[str]:
    """Run a piece of Python in a process of its own; its output is read as text."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=_obey_file_modes,
    )


def finish(program: str, *args: object) -> str:
    """Run a piece of Python to its end and return what it printed; a failure shows its errors."""
    process = start(program, *args)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    return out


def _obey_file_modes() -> None:
    """Let root, too, be stopped by file modes, so that the tests say the same for everybody."""
    libc = ctypes.CDLL(None)
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
