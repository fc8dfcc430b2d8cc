"""Runs a program to its end, in bounded time, and with what it said kept in bounds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmgw.release.files import ReleaseError

OUTPUT_BYTES_MAX = 64 * 1024
WORDS_CHARS_MAX = 1000


@dataclass(frozen=True)
class Ended:
    """A program that has ended. A negative exit code is a signal."""

    exit_code: int
    output: str
    errors: str

    @property
    def last_words(self) -> str:
        """What it complained of, on one line."""
        words = " ".join((self.errors.strip() or self.output.strip()).split())
        return words.removeprefix("error: ")[-WORDS_CHARS_MAX:]


async def run_program(
    arguments: Sequence[str], environ: Mapping[str, str], timeout_s: float, *, given: str = ""
) -> Ended:
    """Run it with `given` on its standard input, in a session of its own. Cancelled or too late, it and what it
    started are killed.

    Raises ReleaseError when it cannot be started, or does not end within `timeout_s`.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        raise ReleaseError(f"{arguments[0]} cannot be started: {error.strerror}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(timeout_s):
            _, output, errors = await asyncio.gather(
                _give(process.stdin, given), _read(process.stdout), _read(process.stderr)
            )
            code = await process.wait()
    except TimeoutError:
        raise ReleaseError(f"{arguments[0]} did not end within {timeout_s:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return Ended(code, output, errors)


async def _give(stream: asyncio.StreamWriter, text: str) -> None:
    with contextlib.suppress(ConnectionError):
        stream.write(text.encode())
        await stream.drain()
    stream.close()


async def _read(stream: asyncio.StreamReader) -> str:
    """All of it; of more than the bound, the end."""
    kept = b""
    while piece := await stream.read(8192):
        kept = (kept + piece)[-OUTPUT_BYTES_MAX:]
    return kept.decode(errors="replace")
