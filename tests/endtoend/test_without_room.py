"""A fleet without room for two of anything, and a gang whose worker never joins: what waits, what stops first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from llmgw.sim.demo_fleet import DemoFleet
from tests.endtoend.conftest import RunningFleet, edited, until

SPEED = ["--load-s", "0.1", "--tokens-per-s", "60"]
RENDEZVOUS_S = 2


def sim(*args: str, **profile: Any) -> list[dict[str, Any]]:
    return [{"engine": "sim", "args": [*SPEED, *args], **profile}]


MODELS = [
    {"name": "gap", "profiles": sim(gpus_per_node=7, stop_first=True)},
    {"name": "stay", "profiles": sim(gpus_per_node=7)},
    {"name": "gang", "profiles": sim("--never-join", nodes=2, rendezvous_timeout=f"{RENDEZVOUS_S}s")},
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    """Two nodes of eight GPUs: seven each for a model, and the last ones for a gang."""

    def adjust(demo: DemoFleet) -> None:
        with edited(demo.folder / "server.yaml") as config:
            config["models"] = MODELS

    running = RunningFleet(
        tmp_path_factory.mktemp("room") / "demo",
        adjust=adjust,
        nodes={"node01": ("127.0.0.71", "ib-a"), "node02": ("127.0.0.72", "ib-a")},
    )
    try:
        until(lambda: running.ready("gap") and running.ready("stay"), 30, running.story)
        yield running
    finally:
        running.close()
    assert not running.demo.engines(), "engines were left behind"


def shown(fleet: RunningFleet, *command: str) -> str:
    return re.sub(r"\s+", " ", fleet.ctl(*command).stdout)


def apply(fleet: RunningFleet, model: str, *args: str) -> None:
    """Give a model's profile other arguments; as `ctl apply` does, and quicker than a process starts."""
    catalog = fleet.get("catalog")
    entry = next(entry for entry in catalog["models"] if entry["name"] == model)
    entry["profiles"][0]["args"] = [*SPEED, *args]
    wish = {"models": catalog["models"], "base": catalog["revision"], "confirmed": True}
    fleet.run(fleet.demo.post("catalog", wish))


def story(fleet: RunningFleet, model: str) -> list[dict[str, Any]]:
    """What happened to a model's replicas, the oldest first."""
    items: list[dict[str, Any]] = fleet.get(f"history?model={model}&kind=replica&limit=500")
    return items[::-1]


def events(fleet: RunningFleet, model: str) -> list[tuple[str, str]]:
    return [(item["subject"], item["event"]) for item in story(fleet, model)]


def test_a_gang_whose_worker_never_joins_fails_at_its_deadline_and_is_tried_again_with_backoff(
    fleet: RunningFleet,
) -> None:
    def of(event: str) -> list[dict[str, Any]]:
        return [item for item in story(fleet, "gang") if item["event"] == event]

    until(lambda: of("failed"), 20, fleet.story)
    started, failed = of("starting")[0], of("failed")[0]
    assert "only 0 of 1 workers joined before the deadline" in failed["reason"]
    assert failed["reason"].startswith("rank 0 on node0")
    assert RENDEZVOUS_S <= failed["at"] - started["at"] < RENDEZVOUS_S + 8
    (explained,) = fleet.get("explain?model=gang")["profiles"]
    assert re.match(r"tried again in \d+ s after 1 failure, the last", explained["summary"]), explained
    assert "only 0 of 1 workers joined" in explained["last_failure"]
    until(lambda: of("reaped"), 10, fleet.story)
    words = fleet.ctl("logs", failed["subject"], "--rank", "1").stdout
    assert "rank 1 joins nobody" in words, "of the rank that hung, which another failed of"
    until(lambda: len(of("starting")) == 2, 20, fleet.story)
    assert 10 <= of("starting")[1]["at"] - failed["at"] < 18
    # Another form owes nothing to the failures of the one before.
    apply(fleet, "gang")
    until(lambda: fleet.ready("gang"), 9, fleet.story)


def test_a_changed_profile_that_stops_first_rolls_with_a_gap_and_ends_what_runs_in_peace(
    fleet: RunningFleet,
) -> None:
    (before,) = fleet.ready("gap")
    with ThreadPoolExecutor(1) as pool:
        # A stream: what has begun is never repeated elsewhere, so that it ends whole only where it began.
        asked = pool.submit(fleet.chat, "gap", max_tokens=360, ignore_eos=True, stream=True)
        until(lambda: fleet.ready("gap")[0]["in_flight"], 5)
        apply(fleet, "gap", "--max-model-len", "4096")
        until(lambda: (before["replica_id"], "draining") in events(fleet, "gap"), 5)
        assert not asked.done()
        answer = asked.result()
    assert answer.text.rstrip().endswith("data: [DONE]")
    assert answer.text.count("data: ") > 360
    assert "error" not in answer.text
    (after,) = until(lambda: [r for r in fleet.ready("gap") if r["replica_id"] != before["replica_id"]], 20)
    old, new = before["replica_id"], after["replica_id"]
    happened = [item for item in events(fleet, "gap") if item[1] != "shard stopped"]
    assert happened[2:] == [
        (old, "draining"), (old, "stopping"), (old, "stopped"), (new, "starting"), (new, "ready"),
    ]  # fmt: skip
    assert ("draining", "its profile has changed (stop_first)") in fleet.history(old)
    assert fleet.chat("gap").status_code == 200


def test_a_changed_profile_that_does_not_waits_for_room_says_so_and_serves_on(
    fleet: RunningFleet,
) -> None:
    (before,) = fleet.ready("stay")
    old = before["replica_id"]
    apply(fleet, "stay", "--max-model-len", "4096")
    why = "its profile has changed; it is left serving, since nothing else can take it: needs 1 node with 7 free"
    until(lambda: any(found["check"] == "move-stuck" for found in fleet.get("server")["problems"]), 10)
    assert why in shown(fleet, "replicas")
    status = shown(fleet, "status")
    assert f"WARNING: stay/default: {old} cannot be replaced: {why}" in status
    assert "stop_first in the profile moves it with a gap" in status
    assert fleet.chat("stay").status_code == 200
    assert [replica["replica_id"] for replica in fleet.ready("stay")] == [old]

    fleet.ctl("scale", "gap", "0", "--yes")
    (after,) = until(lambda: [r for r in fleet.ready("stay") if r["replica_id"] != old], 20, fleet.story)
    until(lambda: (old, "stopped") in events(fleet, "stay"), 20, fleet.story)
    happened = events(fleet, "stay")
    assert happened.index((after["replica_id"], "ready")) < happened.index((old, "draining"))
    assert fleet.chat("stay").status_code == 200
