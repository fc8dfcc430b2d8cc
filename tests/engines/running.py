"""Starts programs for tests and waits for what they print, each wait with a deadline."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx

from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 15.0

http = httpx.Client(verify=False, trust_env=False, timeout=20)
"""One client for all requests: making one reads certificates each time, which costs more than a request."""

ENGINE = [sys.executable, "-m", "llmgw", "sim", "engine"]


def until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait for a condition, asked every 10 ms."""
    deadline = time.monotonic() + timeout_s * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s * PATIENCE} s in vain for {what}"
        time.sleep(0.01)


class Program:
    """A running program, with everything it has printed."""

    def __init__(self, argv: list[str], env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            argv,
            env=env if env is not None else environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._output: list[str] = []
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=_collect, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self._output), (self.process.stderr, self._errors))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def output(self) -> str:
        return "".join(self._output)

    @property
    def errors(self) -> str:
        return "".join(self._errors)

    def wait_for(self, pattern: str, timeout_s: float = DEADLINE_S) -> re.Match[str]:
        """Wait until standard output matches."""
        until(
            lambda: bool(re.search(pattern, self.output)) or self.process.poll() is not None,
            f"{pattern!r} in {self.output!r} {self.errors!r}",
            timeout_s,
        )
        match = re.search(pattern, self.output)
        assert match, f"ended with {self.process.poll()}: {self.output!r} {self.errors!r}"
        return match

    def wait_exit(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait for the end and for the last of the output; the exit code."""
        code = self.process.wait(timeout_s * PATIENCE)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def url(self) -> str:
        """Where it serves, once it says so."""
        return self.wait_for(r"listening on (http://\S+)\n")[1]

    def port(self) -> int:
        return int(self.url().rpartition(":")[2])

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()


@contextmanager
def program(argv: list[str], env: dict[str, str] | None = None) -> Iterator[Program]:
    """Run a program; it is killed at the end whatever happens."""
    running = Program(argv, env)
    try:
        yield running
    finally:
        running.kill()
        running.wait_exit()


@contextmanager
def sim_engine(*args: str, **env: str) -> Iterator[Program]:
    """Run a simulated engine on any free port, with the name `tiny` unless the arguments give one."""
    names = [] if "--served-name" in args else ["--served-name", "tiny"]
    port = [] if "--port" in args else ["--port", "0"]
    with program([*ENGINE, *port, *names, *args], environment(**env)) as running:
        yield running


def environment(**more: str) -> dict[str, str]:
    """The environment of the tests with the package on the path."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def _collect(stream: IO[str], lines: list[str]) -> None:
    for line in stream:
        lines.append(line)  # noqa: PERF402 - each line as it comes, not when the program has ended


def metric(text: str, name: str, **labels: str) -> float:
    """One sample of a metrics page."""
    for line in text.splitlines():
        if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no sample {name} {labels}")
