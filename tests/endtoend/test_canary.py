"""A canary profile of a real fleet: a tenth of the weight gets about a tenth of the requests, and 0 none."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from llmgw.sim.demo_fleet import DemoFleet
from tests.endtoend.conftest import RunningFleet, edited, until

MODEL = "demo/small"
REQUESTS = 400


def with_a_canary(demo: DemoFleet) -> None:
    with edited(demo.folder / "server.yaml") as config:
        model = next(each for each in config["models"] if each["name"] == MODEL)
        config["models"] = [model]
        profile = {**model["profiles"][0], "replicas": 1}
        model["profiles"] = [profile, {**profile, "name": "canary", "weight": 0.1}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    running = RunningFleet(
        tmp_path_factory.mktemp("canary") / "demo",
        adjust=with_a_canary,
        nodes={"node01": ("127.0.0.11", "ib-a")},
    )
    try:
        until(lambda: len(running.ready(MODEL)) == 2, 40, running.story)
        yield running
    finally:
        running.close()


def replica_of(fleet: RunningFleet, profile: str) -> str:
    return next(str(each["replica_id"]) for each in fleet.ready(MODEL) if each["profile"] == profile)


def ask(fleet: RunningFleet, count: int) -> Counter[str]:
    """So many requests one after the other: how many each replica answered."""
    answered: Counter[str] = Counter()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    with httpx.Client(trust_env=False, timeout=20) as client:
        for _ in range(count):
            answer = client.post(f"{fleet.demo.api}/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            answered[answer.headers["x-llmgw-replica"]] += 1
    return answered


def test_a_canary_gets_its_share_and_with_weight_0_only_what_nobody_else_can_take(
    fleet: RunningFleet, tmp_path: Path
) -> None:
    stable, canary = replica_of(fleet, "default"), replica_of(fleet, "canary")
    # The slow start of both is over when a tenth's share no longer depends on who was ready first.
    until(lambda: ask(fleet, 40)[canary] >= 1, 40)
    answered = ask(fleet, REQUESTS)
    assert REQUESTS / 11 / 2 < answered[canary] < REQUESTS / 11 * 2, answered
    assert "weight 0.1" in fleet.ctl("models").stdout
    assert "weight 0.1: each replica gets 0.1 times" in fleet.ctl("explain", MODEL).stdout

    catalog = yaml.safe_load(fleet.ctl("catalog", "show").stdout)
    catalog["models"][0]["profiles"][1]["weight"] = 0
    (tmp_path / "catalog.yaml").write_text(yaml.safe_dump(catalog))
    fleet.ctl("apply", "--yes", str(tmp_path / "catalog.yaml"))
    until(lambda: ask(fleet, 60)[canary] == 0, 20)
    assert ask(fleet, 100) == {stable: 100}
    assert {stable, canary} == {each["replica_id"] for each in fleet.ready(MODEL)}, "nothing was restarted"
    victim = next(each for each in fleet.ready(MODEL) if each["replica_id"] == stable)
    os.kill(victim["shards"][0]["engine_pid"], signal.SIGKILL)
    assert ask(fleet, 10)[canary] >= 1, "it stands by"
