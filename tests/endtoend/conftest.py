"""A real fleet in real processes, shared by the tests of a file: server, router, four agents, engines."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import yaml

from llmgw.sim.demo_files import DemoOptions
from llmgw.sim.demo_fleet import DemoFleet
from tests.patience import PATIENCE

T = TypeVar("T")


class RunningFleet:
    """The demo's fleet, with calls that wait."""

    def __init__(
        self,
        folder: Path,
        *,
        adjust: Callable[[DemoFleet], None] = lambda demo: None,
        routers: int = 1,
        **options: Any,
    ) -> None:
        """`adjust` changes the files that the demo wrote before anything is started."""
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        options = {"load_s": 0.3, "tokens_per_s": 200.0, **options}
        self.demo = DemoFleet(DemoOptions(folder=folder, api_port=0, admin_port=0, agents_port=0, **options))
        self.demo.prepare()
        with edited(self.demo.folder / "server.yaml") as config:
            config["router"]["workers"] = routers
        adjust(self.demo)
        self.run(self.demo.start())

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 90.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def get(self, path: str) -> Any:
        return self.run(self.demo.get(path))

    def ready(self, model: str | None = None) -> list[dict[str, Any]]:
        return [r for r in self.get("replicas") if r["state"] == "ready" and model in (None, r["model"])]

    def wait_ready(self, big: int = 2, small: int = 2) -> None:
        until(
            lambda: (len(self.ready("demo/big")), len(self.ready("demo/small"))) == (big, small), 40, self.story
        )

    def story(self) -> str:
        try:
            return json.dumps(
                [(r["replica_id"], r["state"], r["reason"]) for r in self.get("replicas")], indent=1
            )
        except Exception as error:
            return f"{error!r}\n{self.demo.last_words('server', 40)}"

    def ctl(self, *arguments: str, ok: bool = True, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """`llmgw ctl …` as a process of its own, on the server's host."""
        env = {"LLMGW_STATE": str(self.demo.state), "NO_COLOR": "1", "COLUMNS": "200"}
        done = llmgw("ctl", *arguments, env=env, timeout_s=timeout_s)
        assert "Traceback" not in done.stderr, done.stderr
        if ok:
            assert done.returncode == 0, f"{arguments}: {done.stderr}{done.stdout}"
        return done

    def ctl_json(self, *arguments: str) -> Any:
        return json.loads(self.ctl(*arguments, "-o", "json").stdout)

    def node(self, node_id: str) -> dict[str, Any]:
        """A node of the fleet; one whose agent has just been started may have to register first."""
        found: dict[str, Any] = until(
            lambda: next((node for node in self.get("nodes") if node["node_id"] == node_id), None),
            story=lambda: f"{node_id} is no node of {self.get('nodes')}",
        )
        return found

    def history(self, subject: str) -> list[tuple[str, str]]:
        """(event, reason) of one subject, the oldest first."""
        items = self.get(f"history?subject={subject}&limit=500")
        return [(item["event"], item["reason"]) for item in reversed(items)]

    def chat(self, model: str, timeout_s: float = 20.0, **more: Any) -> httpx.Response:
        return chat(self.demo.api, model, timeout_s, **more)

    def close(self) -> None:
        self.run(self.demo.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)


def llmgw(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 30.0
) -> subprocess.CompletedProcess[str]:
    """`llmgw …` as a process of its own, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "llmgw", *arguments],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


class Running:
    """A process with its output in a file; it is killed when the block ends."""

    def __init__(
        self, command: Sequence[str], log: Path, *, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @classmethod
    def llmgw(cls, *arguments: str, log: Path, **more: Any) -> Running:
        return cls([sys.executable, "-m", "llmgw", *arguments], log, **more)

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def says(self, words: str, limit_s: float = 20.0) -> None:
        """Wait until the output holds the words."""
        until(lambda: words in self.output or self.process.poll() is not None, limit_s, lambda: self.output)
        assert words in self.output, self.output

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def edited(path: Path) -> Iterator[dict[str, Any]]:
    """A YAML file's content, written back when the block ends."""
    content = yaml.safe_load(path.read_text())
    yield content
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def chat(api: str, model: str, timeout_s: float = 20.0, **more: Any) -> httpx.Response:
    """One small chat request."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, **more}
    with httpx.Client(trust_env=False, timeout=timeout_s) as client:
        return client.post(f"{api}/v1/chat/completions", json=body)


def until(holds: Callable[[], Any], limit_s: float = 20.0, story: Callable[[], str] | None = None) -> Any:
    """Wait until `holds` is true and return it; fail with the story when `limit_s` is over by far."""
    deadline = time.monotonic() + limit_s * PATIENCE
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s * PATIENCE:g} s" + (f": {story()}" if story else ""))
        time.sleep(0.1)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    running = RunningFleet(tmp_path_factory.mktemp("fleet") / "demo")
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()
    assert not running.demo.engines(), "engines were left behind"
