"""An engine that is busy with others' requests says so, and the gateway's next ones go to its equal."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from llmgw.sim.demo_fleet import DemoFleet
from tests.endtoend.conftest import RunningFleet, edited, llmgw, until

MODEL = "demo/small"


def one_at_a_time(demo: DemoFleet) -> None:
    with edited(demo.folder / "server.yaml") as config:
        config["models"] = [each for each in config["models"] if each["name"] == MODEL]
        config["models"][0]["profiles"][0]["args"] += ["--max-num-seqs", "2"]
        config["models"][0]["limits"] = {"waiting": 3}
        config["router"]["tracing"] = {"endpoint": "http://127.0.0.1:9", "headers_file": "no.headers"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    running = RunningFleet(
        tmp_path_factory.mktemp("figures") / "demo",
        adjust=one_at_a_time,
        nodes={"node01": ("127.0.0.11", "ib-a")},
    )
    try:
        until(lambda: len(running.ready(MODEL)) == 2, 40, running.story)
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def occupied(fleet: RunningFleet) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Two replicas: at the first, two of somebody else's requests run and four wait; nobody asks the other."""
    busy, calm = fleet.ready(MODEL)
    body = {"model": MODEL, "prompt": "x", "max_tokens": 30_000, "ignore_eos": True, "stream": True}
    leave = threading.Event()

    def occupy() -> None:
        url = f"http://{busy['endpoint']}/v1/completions"
        with (
            httpx.Client(trust_env=False, timeout=120) as client,
            client.stream("POST", url, json=body, headers=_key(fleet, busy)),
        ):
            leave.wait(120)

    threads = [threading.Thread(target=occupy, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    yield busy, calm
    leave.set()
    for thread in threads:
        thread.join(10)


def test_a_gateway_that_cannot_trace_serves_and_says_what_it_lacks(fleet: RunningFleet) -> None:
    assert fleet.chat(MODEL, max_tokens=1).status_code == 200
    (finding,) = (each for each in fleet.get("server")["problems"] if each["check"] == "tracing-impossible")
    assert "pip install" in finding["what"] or "no.headers" in finding["what"]
    assert "nothing is traced" in (fleet.demo.state / "router.log").read_text()


def test_a_replica_is_told_to_fail_by_its_name_and_mended(fleet: RunningFleet) -> None:
    victim = str(fleet.ready(MODEL)[0]["replica_id"])
    env = {"LLMGW_STATE": str(fleet.demo.state)}
    done = llmgw("sim", "fault", victim, "error_rate=1", env=env)
    assert done.returncode == 0, done.stderr
    assert "error_rate=1\n" in done.stdout
    assert "error_rate=0.0\n" in llmgw("sim", "fault", victim, "ok", env=env).stdout
    wrong = llmgw("sim", "fault", "nobody", "error_rate=1", env=env)
    assert wrong.returncode == 1
    assert "nobody" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_requests_go_to_the_engine_that_says_that_nobody_waits_there(
    fleet: RunningFleet, occupied: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    busy, calm = occupied

    def told() -> bool:
        figures = {each["replica_id"]: each["figures"] or {} for each in fleet.ready(MODEL)}
        said = [figures[each["replica_id"]].get("waiting") for each in (busy, calm)]
        # Two streams of 200 tokens a second run there.
        return said == [4, 0] and (figures[busy["replica_id"]].get("tokens_per_s") or 0) > 50

    until(told, 30)
    shown = fleet.ctl("replicas", busy["replica_id"]).stdout
    assert "2 running, 4 waiting" in shown
    assert "tokens/s" in shown
    # The routers have it within a second of the API; an engine with a queue would not answer at all.
    with httpx.Client(trust_env=False, timeout=5) as client:
        ask = {"model": MODEL, "prompt": "x", "max_tokens": 1}

        def who() -> str | None:
            try:
                answer = client.post(f"{fleet.demo.api}/v1/completions", json=ask)
            except httpx.TimeoutException:
                return None
            return answer.headers["x-llmgw-replica"]

        until(lambda: [who() for _ in range(3)] == [calm["replica_id"]] * 3, 30)
        assert [who() for _ in range(20)] == [calm["replica_id"]] * 20
    assert fleet.run(fleet.demo.metric("llmgw_engine_requests")) >= 6


def test_a_crossed_limit_and_a_silent_engine_are_a_finding_each(
    fleet: RunningFleet, occupied: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    busy, calm = (each["replica_id"] for each in occupied)
    env = {"LLMGW_STATE": str(fleet.demo.state)}
    llmgw("sim", "fault", calm, "metrics_silent=true", env=env)

    def problems() -> dict[str, dict[str, Any]]:
        return {each["check"]: each for each in fleet.get("server")["problems"]}

    until(lambda: problems().keys() >= {"limit-waiting", "engine-metrics-silent"}, 60, lambda: str(problems()))
    limit, silent = problems()["limit-waiting"], problems()["engine-metrics-silent"]
    assert (limit["where"], silent["where"]) == (MODEL, calm)
    assert f"limits.waiting of 3, in 1 of its 2 ready replicas: {busy} (4)" in limit["what"]
    assert "did not come within 2 s" in silent["what"]
    entries = fleet.ctl_json("history", "--kind", "model")
    assert [(entry["subject"], entry["event"]) for entry in entries] == [(MODEL, "limit crossed")]
    llmgw("sim", "fault", calm, "ok", env=env)
    until(lambda: "engine-metrics-silent" not in problems(), 30)
    assert "limit-waiting" in problems()


def _key(fleet: RunningFleet, replica: dict[str, object]) -> dict[str, str]:
    """What the replica's engine demands: this test stands for somebody on its node who knows it."""
    shard = replica["shards"][0]["shard_id"]  # type: ignore[index]
    for path in fleet.demo.folder.glob(f"node01/work/shards/{shard}/*.json"):
        key = json.loads(path.read_text()).get("api_key")
        if key:
            return {"authorization": f"Bearer {key}"}
    return {}
