"""What cannot be meant gets a sentence, and what cannot be done is explained instead of being tried for ever."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from llmgw.pki.authority import Authority
from llmgw.pki.handout import write_files
from llmgw.router.memory import KEPT_BYTES_MAX
from llmgw.sim.demo_fleet import DemoFleet
from tests.endtoend.conftest import RunningFleet, edited, llmgw, until
from tests.endtoend.servers import Server, server
from tests.engines.running import sim_engine
from tests.ports import free_port

MIB = 1024 * 1024


def sim(**profile: Any) -> list[dict[str, Any]]:
    return [{"engine": "sim", "args": ["--load-s", "0.1"], **profile}]


MODELS = [
    {"name": "small", "profiles": sim()},
    {"name": "wide", "profiles": sim(gpus_per_node=16)},
    {"name": "gang", "profiles": sim(nodes=2, fabric="ib-x")},
    {"name": "broken", "profiles": sim(args=["--load-s", "0.1", "--fail-load"])},
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    """Two nodes whose second fabric names an adapter that they do not have, and models that cannot run."""

    def adjust(demo: DemoFleet) -> None:
        with edited(demo.folder / "server.yaml") as config:
            config["models"] = MODELS
        for node in demo.nodes:
            with edited(demo.folder / node / "agent.yaml") as config:
                config["fabrics"].append({"name": "ib-x", "hcas": ["mlx5_9"]})
                config["heartbeat_interval"] = "1s"

    running = RunningFleet(
        tmp_path_factory.mktemp("bad") / "demo",
        adjust=adjust,
        nodes={"node01": ("127.0.0.51", "ib-a"), "node02": ("127.0.0.52", "ib-a")},
    )
    try:
        until(lambda: running.ready("small"), 30, running.story)
        yield running
    finally:
        running.close()
    assert not running.demo.engines()


def profile_of(fleet: RunningFleet, model: str) -> dict[str, Any]:
    found: dict[str, Any] = fleet.ctl_json("explain", model)["profiles"][0]
    return found


def failures(fleet: RunningFleet) -> list[dict[str, Any]]:
    history = fleet.get("history?model=broken&limit=500")
    return [item for item in reversed(history) if item["event"] == "failed"]


def test_a_crash_loop_backs_off_and_says_why_and_when(fleet: RunningFleet) -> None:
    process = psutil.Process(fleet.demo.pid("server"))
    until(lambda: failures(fleet), 20, fleet.story)
    used, since = sum(process.cpu_times()[:2]), time.monotonic()
    first = until(lambda: (p := profile_of(fleet, "broken"))["retry_in_s"] and p, 5)
    assert "out of memory" in first["last_failure"].lower()
    assert "tried again in" in first["summary"]
    assert "tried again in" in fleet.ctl("explain", "broken").stdout

    until(lambda: len(failures(fleet)) == 2, 30, fleet.story)
    second = until(lambda: (p := profile_of(fleet, "broken"))["retry_in_s"] and p, 5)
    assert second["retry_in_s"] > 10, "each time longer"
    assert len(failures(fleet)) == 2

    # Meanwhile nothing turned in circles, for this model or those that can never be placed.
    assert (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - since) < 0.3
    for model in ("wide", "gang"):
        assert fleet.get(f"history?model={model}") == []
    assert "does not come to an end" not in fleet.demo.last_words("server", 1000)


def test_the_last_output_of_a_failed_replica_is_kept(fleet: RunningFleet) -> None:
    failed = until(lambda: failures(fleet), 20, fleet.story)[0]
    words = fleet.ctl("logs", failed["subject"]).stdout
    assert "out of memory" in words.lower()
    assert failed["nodes"]


def test_gpus_that_no_node_has_are_explained(fleet: RunningFleet) -> None:
    wide = profile_of(fleet, "wide")
    assert wide["summary"].startswith("cannot be placed")
    (tally,) = wide["refused"]
    assert tally["nodes"] == ["node01", "node02"]
    assert "fewer usable GPUs than gpus_per_node" in tally["reason"]
    assert "has 8 usable GPUs of 8, wanted are 16" in fleet.ctl("explain", "wide").stdout
    refused = fleet.chat("wide")
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    assert "ctl explain" in refused.json()["error"]["message"]


def test_an_adapter_that_does_not_exist_is_named_wherever_somebody_looks(fleet: RunningFleet) -> None:
    offer = next(offer for offer in fleet.node("node01")["fabrics"] if offer["name"] == "ib-x")
    assert not offer["usable"]
    for command in (("nodes", "node01"), ("fabrics",), ("explain", "gang")):
        shown = fleet.ctl(*command).stdout
        assert "mlx5_9" in shown, command
        assert "mlx5_0" in shown or command == ("nodes", "node01"), "with those that exist"
    fabric = next(fabric for fabric in fleet.ctl_json("fabrics") if fabric["name"] == "ib-x")
    assert fabric["nodes"] == []
    assert set(fabric["unusable"]) == {"node01", "node02"}


def test_a_port_that_goes_down_and_comes_back_is_shown_and_remembered_once(fleet: RunningFleet) -> None:
    hardware = str(fleet.demo.folder / "node01" / "hardware")

    def usable() -> bool:
        offers = fleet.node("node01")["fabrics"]
        return bool(next(offer for offer in offers if offer["name"] == "ib-a")["usable"])

    def changes() -> list[tuple[str, str]]:
        items = fleet.get("history?kind=fabric&limit=500")
        return [(item["event"], item["reason"]) for item in reversed(items) if "node01" in item["nodes"]]

    assert usable()
    before = changes()
    assert llmgw("sim", "port", hardware, "mlx5_0", "down").returncode == 0
    until(lambda: not usable(), 10)
    hear(fleet, "node01", 3)
    down = changes()[len(before) :]
    assert [(event, "mlx5_0 port 1" in reason) for event, reason in down] == [("unusable", True)]
    assert "node01" in next(f for f in fleet.ctl_json("fabrics") if f["name"] == "ib-a")["unusable"]
    assert llmgw("sim", "port", hardware, "mlx5_0", "active").returncode == 0
    until(usable, 10)
    until(lambda: [event for event, _ in changes()[len(before) :]] == ["unusable", "usable"], 10)
    unknown = llmgw("sim", "port", hardware, "mlx5_7", "down")
    assert unknown.returncode == 1
    assert "mlx5_0" in unknown.stderr


def hear(fleet: RunningFleet, node: str, count: int) -> None:
    """Wait for so many heartbeats more: each takes the time since the last one back to nothing."""
    for _ in range(count):
        until(lambda: fleet.node(node)["last_heard_s"] > 0.4, 5)
        until(lambda: fleet.node(node)["last_heard_s"] < 0.4, 5)


# A start that cannot be.


def refused(config: dict[str, Any], folder: Path) -> str:
    """The one sentence with which a server refuses to start."""
    (folder / "server.yaml").write_text(yaml.safe_dump(config))
    done = llmgw("server", "--config", str(folder / "server.yaml"))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            assert f"--state={folder / 'state'}" not in process.cmdline(), "a router was left behind"
    return sentence


def config_in(folder: Path) -> dict[str, Any]:
    return {
        "listen": f"127.0.0.1:{free_port()}",
        "admin": {"listen": f"127.0.0.1:{free_port()}"},
        "agents": {"listen": f"127.0.0.1:{free_port()}"},
        "state": str(folder / "state"),
    }


@pytest.mark.parametrize("key", ["listen", "admin.listen", "agents.listen"])
def test_a_busy_port_is_one_sentence_that_names_the_key(tmp_path: Path, key: str) -> None:
    now = time.time()
    authority = Authority.create(tmp_path / "pki", permit_ip=["127.0.0.0/8"], now=now)
    config = config_in(tmp_path)
    config["agents"]["tls"] = write_files(authority.issue_server(["127.0.0.1"], now), tmp_path / "tls")
    group, _, _ = key.rpartition(".")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        (config[group] if group else config)["listen"] = f"127.0.0.1:{port}"
        sentence = refused(config, tmp_path)
    assert f"port {port} on 127.0.0.1 is busy" in sentence
    assert f"set {key}" in sentence


def test_a_state_that_is_no_database_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    database = tmp_path / "state" / "llmgw.db"
    database.write_text("my notes\n" * 1000)
    sentence = refused(config_in(tmp_path), tmp_path)
    assert str(database) in sentence
    assert database.read_text().startswith("my notes")


def test_a_state_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    with server(tmp_path):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / "llmgw.db")) as database, database:
        database.execute("update alembic_version set version_num = '9001'")
    sentence = refused(config, tmp_path)
    assert "newer llmgw" in sentence
    assert "9001" in sentence


def test_a_wrong_key_is_told_with_file_and_line(tmp_path: Path) -> None:
    sentence = refused({**config_in(tmp_path), "modles": []}, tmp_path)
    assert f"{tmp_path}/server.yaml line 6: modles: unknown key; did you mean models?" in sentence
    assert not (tmp_path / "state").exists()


# Too much of it.


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway before one slow engine."""
    with sim_engine("--served-name", "slow", "--tokens-per-s", "5", "--max-num-seqs", "1000") as engine:
        models = [{"name": "slow", "endpoints": [{"url": engine.url()}]}]
        with server(tmp_path_factory.mktemp("gateway"), models=models) as running:
            yield running


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_200_mb_is_413_and_is_not_kept(gateway: Server, chunked: bool) -> None:
    (router,) = gateway.routers()
    before = router.memory_info().rss
    url = httpx.URL(gateway.api)
    length = "transfer-encoding: chunked" if chunked else f"content-length: {200 * MIB}"
    for _ in range(3):
        answer = b""
        with socket.create_connection((url.host, url.port), 10) as connection:
            connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{length}\r\n\r\n".encode())
            block = b" " * MIB
            with contextlib.suppress(OSError):
                for _ in range(200):
                    connection.sendall(b"%x\r\n%s\r\n" % (MIB, block) if chunked else block)
                    assert router.memory_info().rss - before < KEPT_BYTES_MAX + 64 * MIB
            with contextlib.suppress(OSError):
                while part := connection.recv(65536):
                    answer += part
        assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert "67108864" in error["message"] or "64 MiB" in error["message"]
    # What was read of three of them, up to 64 MiB each, would be twice this.
    until(lambda: router.memory_info().rss - before < KEPT_BYTES_MAX + 32 * MIB, 5)


def test_500_requests_at_a_time_before_a_slow_engine_are_all_served(gateway: Server) -> None:
    body = {"model": "slow", "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}], "stream": True}

    async def ask(client: httpx.AsyncClient) -> tuple[int, bool]:
        answer = await client.post(f"{gateway.api}/v1/chat/completions", json=body)
        return answer.status_code, answer.text.rstrip().endswith("data: [DONE]")

    async def ask_all() -> list[tuple[int, bool]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(trust_env=False, timeout=150, limits=limits) as client:
            return await asyncio.gather(*(ask(client) for _ in range(500)))

    assert set(asyncio.run(ask_all())) == {(200, True)}
    (router,) = gateway.routers()
    until(lambda: len(router.net_connections()) < 50, 10)
