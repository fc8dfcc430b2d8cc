"""What is measured: a program that listens on a port and passes requests on to the bench's engines."""

from __future__ import annotations

import http.client
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from llmgw.config.errors import SentenceError
from tests.bench.router.processes import Cores, end, wait_until
from tests.bench.router.tools import last_line

READY_S = 120.0
MODEL = "mock"


class TargetError(SentenceError):
    """A target cannot be had or does not serve; the message is a sentence, and the bench goes on without it."""


@dataclass(frozen=True)
class Place:
    """Where targets run: a folder for their files, the cores, and the engines that they pass requests to."""

    folder: Path
    cores: Cores
    engine_ports: tuple[int, ...]

    @property
    def engine_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.engine_ports]


class Target:
    """What `start` makes serve on `port`. The base class is the engine itself, with nothing between."""

    slow = False
    """It needs milliseconds a request: it is asked less, and only in the suites that have a goal for it."""
    key: str | None = None
    """What clients prove themselves with."""

    def __init__(self, name: str, version: str = "") -> None:
        self.name = name
        self.version = version
        self.port = 0
        self.processes: list[subprocess.Popen[bytes]] = []
        self.log: Path | None = None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def start(self, place: Place) -> None:
        """Serve, and return when a request was answered. Raises TargetError."""
        self.port = place.engine_ports[0]

    def stop(self) -> None:
        """End it with all its processes."""
        for process in self.processes:
            end(process)
        self.processes = []

    def wait_serving(self) -> None:
        """Wait for the first answer. Raises TargetError."""
        if not wait_until(self._answers, READY_S, 0.2):
            raise TargetError(f"{self.name} answered no request within {READY_S:g} s; its log is {self.log}")

    def _answers(self) -> bool:
        if any(process.poll() is not None for process in self.processes):
            said = last_line(self.log.read_text(errors="replace")) if self.log is not None else ""
            raise TargetError(f"{self.name} ended when it should serve: {said}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", "/v1/chat/completions", chat_body(False), chat_headers(self.key))
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def chat_body(stream: bool, model: str = MODEL) -> bytes:
    """A small chat request."""
    messages = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": model, "stream": stream, "messages": messages}).encode()


def chat_headers(key: str | None) -> dict[str, str]:
    """Its headers, with the key where there is one."""
    headers = {"content-type": "application/json"}
    return headers | {"authorization": f"Bearer {key}"} if key is not None else headers
