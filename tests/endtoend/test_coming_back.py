"""The fleet comes back: server, agents and routers die under load, and nothing that served is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest

from llmgw.sim.load import Load
from llmgw.sim.scenarios.judge import Judge
from llmgw.sim.scenarios.server_restart import server_restart
from tests.endtoend.conftest import RunningFleet, chat, until


def node_of(fleet: RunningFleet, node_id: str) -> dict[str, Any]:
    found: dict[str, Any] = next(node for node in fleet.get("nodes") if node["node_id"] == node_id)
    return found


async def served(load: Load, count: int) -> None:
    async with asyncio.timeout(60):
        while load.counts()["served"] < count:  # noqa: ASYNC110 - the load sets no event
            await asyncio.sleep(0.05)


def test_a_server_killed_under_load_adopts_everything_and_fails_nothing(fleet: RunningFleet) -> None:
    lines: list[str] = []
    judge = Judge(lines.append)
    fleet.run(server_restart(fleet.demo, judge))
    assert not judge.failures, "\n".join(lines)


def test_a_second_server_on_the_same_state_refuses_to_start(fleet: RunningFleet) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llmgw", "server", "--config", str(fleet.demo.folder / "server.yaml")],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert str(fleet.demo.pid("server")) in done.stderr


def test_an_agent_killed_and_restarted_adopts_its_engines_while_a_stream_runs(fleet: RunningFleet) -> None:
    fleet.wait_ready()
    replica = fleet.ready("demo/small")[0]
    node = replica["nodes"][0]
    engines = fleet.demo.engines(node)

    async def stream_through() -> list[str | None]:
        load = Load(fleet.demo.api, ["demo/small"], clients=4, tokens=400)
        load.start()
        await served(load, 1)
        os.kill(fleet.demo.pid(node), signal.SIGKILL)
        fleet.demo.start_agent(node)
        await served(load, 8)
        await load.stop()
        return [request.outcome for request in load.failed]

    assert fleet.run(stream_through()) == []
    until(lambda: node_of(fleet, node)["last_heard_s"] < 2, 20)
    assert fleet.demo.engines(node) == engines
    assert replica["replica_id"] in {r["replica_id"] for r in fleet.ready("demo/small")}


def test_a_router_that_is_killed_is_started_again(fleet: RunningFleet) -> None:
    fleet.wait_ready()
    (router,) = fleet.get("server")["routers"]
    os.kill(int(router.split()[1]), signal.SIGKILL)

    def served() -> bool:
        try:
            body = {"model": "small", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
            return httpx.post(f"{fleet.demo.api}/v1/chat/completions", json=body, timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    until(served, 20)
    until(lambda: fleet.get("server")["routers"] not in ([], [router]), 10)


def test_a_server_that_restarts_while_the_router_is_stopped_decides_and_tells_it_later(
    fleet: RunningFleet,
) -> None:
    fleet.wait_ready()
    serving = {replica["replica_id"] for replica in fleet.ready()}
    (router,) = fleet.get("server")["routers"]
    pid = router.split()[1]
    os.kill(int(pid), signal.SIGSTOP)
    try:
        fleet.demo.kill_server()
        fleet.demo.start_server()
        fleet.run(fleet.demo.wait_for_admin())
        begun = time.monotonic()
        until(lambda: {replica["replica_id"] for replica in fleet.ready()} == serving, 20, fleet.story)
        # Agents take up to two seconds to come back; the rest would be waiting for the router.
        assert time.monotonic() - begun < 10
        problems = {problem["check"]: problem["remedy"] for problem in fleet.get("server")["problems"]}
        assert f"kill -CONT {pid}" in problems["router-silent"]
        until(lambda: not fleet.get("server")["settling"], 20)
    finally:
        os.kill(int(pid), signal.SIGCONT)
    until(lambda: fleet.get("server")["routers"] == [router], 10)
    # It takes the new server's tables: a replica that is replaced gets no more requests.
    replica = fleet.ready("demo/small")[0]["replica_id"]
    fleet.ctl("restart", replica)
    until(lambda: replica not in {each["replica_id"] for each in fleet.get("replicas")}, 30, fleet.story)
    fleet.wait_ready()
    for _ in range(8):
        assert chat(fleet.demo.api, "demo/small").status_code == 200


def test_a_revoked_node_is_refused_at_once(fleet: RunningFleet) -> None:
    fleet.wait_ready()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "llmgw",
            "ctl",
            "cert",
            "revoke",
            "node04",
            "--pki",
            str(fleet.demo.folder / "pki"),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    until(lambda: "revoked" in fleet.demo.last_words("node04", 50), 20)
    heard = node_of(fleet, "node04")["last_heard_s"]
    until(lambda: node_of(fleet, "node04")["last_heard_s"] > heard + 3, 20)


@pytest.mark.scenario
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["node-loss", "server-restart", "gateway-chaos", "problems"])
def test_the_demo_s_scenarios_pass_unattended(name: str, tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llmgw", "demo", "--scenario", name],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=str(tmp_path),
    )
    assert done.returncode == 0, done.stdout + done.stderr
