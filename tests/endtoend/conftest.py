"""A real fleet in real processes, shared by the tests of a file: server, router, four agents, engines."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from llmgw.sim.demo_fleet import DemoFleet, DemoOptions

T = TypeVar("T")


class RunningFleet:
    """The demo's fleet, with calls that wait."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        options = {"load_s": 0.3, "tokens_per_s": 200.0, **options}
        self.demo = DemoFleet(DemoOptions(folder=folder, api_port=0, admin_port=0, agents_port=0, **options))
        self.demo.prepare()
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
        env = {**os.environ, "LLMGW_STATE": str(self.demo.state), "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "llmgw", "ctl", *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        if ok:
            assert done.returncode == 0, f"{arguments}: {done.stderr}{done.stdout}"
        return done

    def ctl_json(self, *arguments: str) -> Any:
        return json.loads(self.ctl(*arguments, "-o", "json").stdout)

    def close(self) -> None:
        self.run(self.demo.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)


def until(holds: Callable[[], Any], limit_s: float = 20.0, story: Callable[[], str] | None = None) -> Any:
    """Wait until `holds` is true and return it; fail with the story when `limit_s` is over."""
    deadline = time.monotonic() + limit_s
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s} s" + (f": {story()}" if story else ""))
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
