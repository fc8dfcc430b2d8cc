"""What requests take is added up exactly, through real processes, also when the server is killed in between."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.endtoend.conftest import chat, until
from tests.endtoend.servers import Server, server
from tests.engines.running import Program, sim_engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Program]:
    with sim_engine("--served-name", "m", "--tokens-per-s", "2000") as running:
        running.url()
        yield running


@pytest.fixture
def running(tmp_path: Path, engine: Program) -> Iterator[Server]:
    models = [{"name": "m", "aliases": ["also-m"], "endpoints": [{"url": engine.url(), "model": "m"}]}]
    with server(tmp_path / "server", models=models) as started:
        yield started


def usage(running: Server, *arguments: str) -> dict[str, Any]:
    return json.loads(running.ctl("usage", *arguments, "-o", "json"))


def sums(running: Server) -> tuple[int, ...]:
    total = usage(running)["total"]
    return tuple(
        total[name] for name in ("requests", "prompt_tokens", "completion_tokens", "errors", "estimated")
    )


class Clients:
    """Sends requests and adds up what the engine says that they took."""

    def __init__(self, api: str) -> None:
        self._api = api
        self.requests = self.prompt = self.completion = 0

    def whole(self, count: int, model: str = "m") -> None:
        for number in range(count):
            said = chat(self._api, model, max_tokens=2 + number).json()["usage"]
            self._add(said)

    def streamed(self, count: int, path: str = "chat/completions") -> None:
        """The clients do not ask for usage, and see none; the engine says the same to one that asks it itself."""
        for number in range(count):
            lines = self._stream(path, 2 + number)
            assert lines[-1] == "[DONE]"
            chunks = [json.loads(line) for line in lines[:-1]]
            assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)
            asked = self._stream(path, 2 + number, stream_options={"include_usage": True})
            said = json.loads(asked[-2])
            assert said["choices"] == []
            self._add(said["usage"])
            self._add(said["usage"])

    def _stream(self, path: str, max_tokens: int, **more: Any) -> list[str]:
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "count these words"}]}
        if path == "completions":
            prompt = {"prompt": "count these words"}
        body = {"model": "m", "stream": True, "max_tokens": max_tokens, **prompt, **more}
        with httpx.Client(trust_env=False, timeout=20) as client:
            text = client.post(f"{self._api}/v1/{path}", json=body).text
        return [line.removeprefix("data: ") for line in text.split("\n\n") if line]

    def _add(self, said: dict[str, int]) -> None:
        self.requests += 1
        self.prompt += said["prompt_tokens"]
        self.completion += said["completion_tokens"]

    @property
    def sums(self) -> tuple[int, ...]:
        return (self.requests, self.prompt, self.completion, 0, 0)


def test_requests_add_up_exactly_streamed_or_not_and_across_a_kill_of_the_server(running: Server) -> None:
    clients = Clients(running.api)
    clients.whole(5)
    clients.streamed(4)
    clients.streamed(3, "completions")
    until(lambda: sums(running) == clients.sums, 15, lambda: f"{sums(running)} {clients.sums}")
    # What was told a moment ago is not on the disk yet, and what comes now is told to nobody.
    clients.whole(3, "also-m")
    running.kill()
    clients.streamed(4)
    clients.whole(6)
    running.start_again()
    running.wait_serving()
    until(lambda: sums(running) == clients.sums, 15, lambda: f"{sums(running)} {clients.sums}")
    clients.whole(2)
    until(lambda: sums(running) == clients.sums, 15, lambda: f"{sums(running)} {clients.sums}")
    (entry,) = usage(running, "--by", "model")["entries"]
    assert (entry["model"], entry["requests"]) == ("m", clients.requests), "an alias is the model"


def test_a_router_that_ends_in_order_takes_nothing_along(running: Server) -> None:
    clients = Clients(running.api)
    clients.whole(3)
    (router,) = running.routers()
    os.kill(router.pid, signal.SIGTERM)
    router.wait(20)
    until(lambda: running.routers(), 10)
    until(lambda: sums(running) == clients.sums, 15, lambda: f"{sums(running)} {clients.sums}")


def test_a_router_that_is_killed_takes_along_no_more_than_it_had_not_told(running: Server) -> None:
    clients = Clients(running.api)
    clients.whole(3)
    until(lambda: sums(running) == clients.sums, 15, lambda: f"{sums(running)} {clients.sums}")
    (router,) = running.routers()
    os.kill(router.pid, signal.SIGKILL)
    router.wait(20)
    running.wait_serving()
    clients.whole(2)
    until(lambda: sums(running) == clients.sums, 15, lambda: f"{sums(running)} {clients.sums}")


def test_usage_is_shown_by_what_is_asked_and_metrics_count_it(running: Server) -> None:
    clients = Clients(running.api)
    clients.whole(2)
    until(lambda: sums(running) == clients.sums, 15, lambda: f"{sums(running)} {clients.sums}")
    long = [{"role": "user", "content": "a long prompt that comes twice " * 20}]
    cached = [chat(running.api, "m", messages=long).json()["usage"]["prompt_tokens_details"] for _ in range(2)]
    assert cached == [{"cached_tokens": 0}, {"cached_tokens": 112}]
    until(lambda: usage(running)["total"]["cached_tokens"] == 112, 15)
    table = running.ctl("usage", "--by", "day,model")
    assert "DAY (UTC)" in table
    rows = list(csv.DictReader(io.StringIO(running.ctl("usage", "--by", "hour,key,model", "-o", "csv"))))
    assert [(row["key"], row["model"], row["requests"]) for row in rows] == [("", "m", "4")]
    assert running.ctl("usage", "--model", "nobody").strip() == "nothing was used in that time"
    metrics = httpx.get(f"{running.admin}/metrics", headers=token(running), trust_env=False).text
    assert 'llmgw_tokens_total{model="m",kind="cached"} 112' in metrics
    assert f'llmgw_tokens_total{{model="m",kind="completion"}} {clients.completion + 6}' in metrics


def token(running: Server) -> dict[str, str]:
    return {"authorization": f"Bearer {json.loads((running.state / 'admin.json').read_text())['token']}"}
