"""The bench's own tools, in C so that one core of them loads one core of anything: an engine, and a load.

They are compiled when the bench starts, from the sources beside this file, into a folder of that run.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw.config.errors import SentenceError
from tests.bench.router.processes import end, start, wait_until

HERE = Path(__file__).parent
START_S = 10.0
LOAD_MARGIN_S = 120.0
PLAIN = {"delay_us": 0, "chunks": 200, "gap_us": 0, "size": 250, "usage": 1}


class ToolError(SentenceError):
    """The tools cannot be built or do not run; the message is a sentence."""


@dataclass(frozen=True)
class Tools:
    """The compiled programs."""

    engine: Path
    load: Path


def build(folder: Path) -> Tools:
    """Compile the tools into a folder. Raises ToolError without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ToolError(
            "the bench's engine and load are compiled when it starts, and there is no C compiler here; "
            "install one (apt install gcc libc6-dev)"
        )
    for name in ("engine", "load"):
        done = subprocess.run(
            [compiler, "-O2", "-Wall", "-o", str(folder / name), str(HERE / f"{name}.c"), "-lm"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ToolError(f"{compiler} cannot compile {name}.c of the bench: {done.stderr.strip()[:2000]}")
    return Tools(folder / "engine", folder / "load")


class Engines:
    """Two engines that answer in OpenAI's shape, as fast or as slowly as they are told."""

    def __init__(self, program: Path, core: int, folder: Path, count: int = 2) -> None:
        self.usual = dict(PLAIN)
        """What they do where `behave` is told nothing else."""
        self._processes = []
        self.ports: list[int] = []
        for number in range(count):
            said = folder / f"engine-{number}.log"
            self._processes.append(start([program, "0"], core, said))
            if not wait_until(lambda said=said: said.read_text().endswith("\n"), START_S):
                self.stop()
                raise ToolError(f"an engine of the bench did not start; its log is {said}")
            self.ports.append(int(said.read_text().split()[-1]))
        self._connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=10) for port in self.ports]

    def behave(self, **settings: int) -> None:
        """How they answer from now on; what is not named is as usual."""
        query = "&".join(f"{name}={value}" for name, value in (self.usual | settings).items())
        for connection in self._connections:
            _get(connection, f"/_set?{query}")

    def counts(self) -> dict[str, int]:
        """What they have counted, together; of times the latest."""
        together: dict[str, int] = {}
        for connection in self._connections:
            for name, value in json.loads(_get(connection, "/_counts")).items():
                before = together.get(name, 0)
                together[name] = max(before, value) if name.endswith("_ns") else before + value
        return together

    def stop(self) -> None:
        for process in self._processes:
            end(process)


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    return connection.getresponse().read()


@dataclass(frozen=True)
class Load:
    """The load program on its core."""

    program: Path
    core: int
    folder: Path

    def arguments(self, port: int, settings: dict[str, Any]) -> list[str]:
        return [str(self.program), str(port), *(f"{name}={value}" for name, value in settings.items())]

    def run(self, port: int, **settings: Any) -> dict[str, Any]:
        """Put load on a port until its time is over. Raises ToolError when the program fails."""
        running = self.begin(port, **settings)
        return self.finish(running, settings.get("duration_ms", 3000) / 1000 + LOAD_MARGIN_S)

    def begin(self, port: int, **settings: Any) -> subprocess.Popen[str]:
        """The same without waiting for its end."""
        # The bench itself runs on the tools' core, and so does what it starts.
        return subprocess.Popen(
            self.arguments(port, settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def finish(self, running: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
        """What it measured, when it has ended."""
        try:
            out, problem = running.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()
            raise ToolError(f"the load of the bench did not end within {timeout_s:g} s") from None
        if running.returncode or not out.strip():
            raise ToolError(f"the load of the bench failed: {problem.strip()[:500]}")
        measured: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return measured


def last_line(text: str) -> str:
    """For sentences about programs that ended: their last words."""
    lines: Sequence[str] = text.strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
