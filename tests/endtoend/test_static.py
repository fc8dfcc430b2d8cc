"""A server without agents: what serves elsewhere is in the same API, under the same rules. The examples run."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.pki.authority import Authority
from llmgw.pki.handout import write_files
from llmgw.sim.hardware import write_hardware
from tests.endtoend.conftest import Running, chat, llmgw, until
from tests.endtoend.servers import Server, server
from tests.engines.running import Program, sim_engine
from tests.ports import free_port

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
KEY = "sk-static-0123456789"


class Elsewhere:
    """Somebody's OpenAI-compatible server that keeps what it was asked."""

    def __init__(self) -> None:
        asked: list[tuple[str, dict[str, str], Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}, json.loads(body)))
                answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": "ja"}}]}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.asked = asked
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def engine() -> Iterator[Program]:
    with sim_engine("--served-name", "their/name", "--tokens-per-s", "50") as running:
        running.url()
        yield running


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    running = Elsewhere()
    yield running
    running.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: Program, elsewhere: Elsewhere) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("static")
    (folder / "their.key").write_text(KEY + "\n")
    models = [
        {
            "name": "local",
            "aliases": ["gpt-4o-mini"],
            "endpoints": [{"url": engine.url(), "model": "their/name"}],
        },
        {
            "name": "keyed",
            "endpoints": [
                {
                    "url": f"http://127.0.0.1:{elsewhere.port}/some/prefix/v1/",
                    "model": "renamed",
                    "api_key_file": "their.key",
                }
            ],
        },
        {"name": "keyless", "endpoints": [{"url": f"http://127.0.0.1:{elsewhere.port}"}]},
        {"name": "down", "endpoints": [{"url": f"http://127.0.0.1:{free_port()}"}]},
    ]
    with server(folder, models=models) as started:
        yield started


def test_a_model_that_runs_elsewhere_needs_no_agents(running: Server) -> None:
    listed = httpx.get(f"{running.api}/v1/models", trust_env=False).json()
    assert {"local", "gpt-4o-mini", "keyed"} <= {model["id"] for model in listed["data"]}
    for name in ("local", "gpt-4o-mini"):
        assert chat(running.api, name).json()["choices"][0]["message"]["content"]
    streamed = chat(running.api, "local", stream=True)
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert not list(running.get("nodes"))
    assert "local" in running.ctl("models")
    assert running.ctl("status")


def test_the_endpoint_gets_its_own_key_prefix_and_name_and_never_the_clients_key(
    running: Server, elsewhere: Elsewhere
) -> None:
    body = {"model": "keyed", "messages": [{"role": "user", "content": "ich \u00fcbe"}], "temperature": 0.125}
    for model, expected in (("keyed", f"Bearer {KEY}"), ("keyless", None)):
        answer = httpx.post(
            f"{running.api}/v1/chat/completions",
            json={**body, "model": model},
            headers={"authorization": "Bearer client-secret", "x-api-key": "client-secret"},
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        path, headers, asked = elsewhere.asked[-1]
        assert path == ("/some/prefix/v1/chat/completions" if model == "keyed" else "/v1/chat/completions")
        assert headers.get("authorization") == expected
        assert "client-secret" not in json.dumps(headers)
        assert asked == {**body, "model": "renamed" if model == "keyed" else "keyless"}
    assert KEY not in running.log()
    assert KEY not in (running.state / "router.log").read_text()


def test_an_endpoint_that_is_down_is_a_sentence_in_openai_s_shape(running: Server) -> None:
    started = time.monotonic()
    answer = chat(running.api, "down")
    assert answer.status_code in (502, 503)
    error = answer.json()["error"]
    assert "down" in error["message"]
    assert {"message", "type", "code"} <= error.keys()
    assert time.monotonic() - started < 10


def test_requests_go_on_while_the_server_is_dead_and_it_comes_back(running: Server) -> None:
    (router,) = running.routers()
    with httpx.stream(
        "POST",
        f"{running.api}/v1/chat/completions",
        json={
            "model": "local",
            "stream": True,
            "max_tokens": 60,
            "messages": [{"role": "user", "content": "hello"}],
        },
        trust_env=False,
        timeout=20,
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        running.kill()
        for name in ("local", "keyed"):
            assert chat(running.api, name).status_code == 200
        assert list(lines)[-2] == "data: [DONE]"
    running.start_again()
    running.wait_serving()
    assert [each.pid for each in running.routers()] == [router.pid]
    assert chat(running.api, "local").status_code == 200


def test_a_key_file_that_is_missing_is_a_sentence(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(
        f"listen: 127.0.0.1:{free_port()}\nadmin: {{listen: '127.0.0.1:{free_port()}'}}\n"
        f"state: {tmp_path / 'state'}\n"
        "models:\n  - name: far\n    endpoints: [{url: 'http://127.0.0.1:9', api_key_file: no.key}]\n"
    )
    done = llmgw("server", "--config", str(config))
    assert done.returncode == 1
    (sentence,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert f"the key file {tmp_path}/no.key of model 'far' cannot be read (No such file or directory)" in sentence
    assert "api_key_file" in sentence


def test_a_state_folder_whose_path_is_longer_than_a_sockets_address_may_be(
    tmp_path: Path, elsewhere: Elsewhere
) -> None:
    models = [{"name": "far", "endpoints": [{"url": f"http://127.0.0.1:{elsewhere.port}"}]}]
    with server(tmp_path / ("deep" * 30), models=models) as running:
        assert chat(running.api, "far").status_code == 200
        (router,) = running.routers()
        running.kill()
        running.start_again()
        running.wait_serving()
        until(lambda: running.get("server")["routers"])
        assert [each.pid for each in running.routers()] == [router.pid]


def test_a_gateway_that_cannot_start_is_the_servers_sentence(tmp_path: Path) -> None:
    (tmp_path / "state" / "router-0.sock").mkdir(parents=True)  # where the router's socket belongs
    config = tmp_path / "server.yaml"
    config.write_text(
        f"listen: 127.0.0.1:{free_port()}\nadmin: {{listen: '127.0.0.1:{free_port()}'}}\n"
        f"state: {tmp_path / 'state'}\n"
    )
    done = llmgw("server", "--config", str(config))
    assert done.returncode == 1
    (sentence,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert "the router ended at once" in sentence
    assert f"{tmp_path}/state/router-0.sock" in sentence


# The examples, run.


def test_the_laptop_example_serves(tmp_path: Path) -> None:
    api, admin = free_port(), free_port()
    env = {
        "LLMGW_SERVER__LISTEN": f"127.0.0.1:{api}",
        "LLMGW_SERVER__ADMIN__LISTEN": f"127.0.0.1:{admin}",
        "LLMGW_SERVER__STATE": str(tmp_path / "state"),
    }
    theirs = 11434  # what the example names
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", theirs)) == 0:
            pytest.skip(f"something listens on port {theirs} already")
    with sim_engine("--served-name", "llama3.2:3b", "--port", str(theirs)) as engine:
        engine.url()
        running = Server(tmp_path, EXAMPLES / "laptop.yaml", api, admin, env)
        try:
            running.wait_serving()
            for name in ("local", "gpt-4o-mini"):
                assert chat(running.api, name).status_code == 200
        finally:
            running.stop()


def test_the_server_and_agent_examples_find_each_other(tmp_path: Path) -> None:
    now = time.time()
    authority = Authority.create(tmp_path / "pki", permit_ip=["127.0.0.0/8"], now=now)
    ours = write_files(authority.issue_server(["127.0.0.1"], now), tmp_path / "server")
    theirs = write_files(authority.issue_client("node01", "127.0.0.41", now), tmp_path / "node01")
    api, admin, agents = free_port(), free_port(), free_port()
    hardware = write_hardware(tmp_path / "hardware", gpus=8, adapters=2, rate_gbps=400, node="node01")
    running = Server(
        tmp_path,
        EXAMPLES / "server.yaml",
        api,
        admin,
        {
            "LLMGW_SERVER__LISTEN": f"127.0.0.1:{api}",
            "LLMGW_SERVER__ADMIN__LISTEN": f"127.0.0.1:{admin}",
            "LLMGW_SERVER__AGENTS__LISTEN": f"127.0.0.1:{agents}",
            "LLMGW_SERVER__STATE": str(tmp_path / "state"),
            "LLMGW_SERVER__LIVENESS__SETTLE": "500ms",
            **{f"LLMGW_SERVER__AGENTS__TLS__{key.upper()}": path for key, path in ours.items()},
        },
    )
    agent = Running.llmgw(
        "agent",
        "--config",
        str(EXAMPLES / "agent.yaml"),
        log=tmp_path / "agent.log",
        env={
            "LLMGW_AGENT__NODE_ID": "node01",
            "LLMGW_AGENT__SERVER": f"https://127.0.0.1:{agents}",
            "LLMGW_AGENT__MGMT_ADDR": "127.0.0.41",
            "LLMGW_AGENT__RECONNECT_BASE": "200ms",
            "LLMGW_AGENT__DISCOVERY__NVIDIA_SMI": str(hardware.nvidia_smi),
            "LLMGW_AGENT__DISCOVERY__IB_ROOT": str(hardware.ib_root),
            "LLMGW_AGENT__SUPERVISOR__WORK_DIR": str(tmp_path / "work"),
            **{f"LLMGW_AGENT__TLS__{key.upper()}": path for key, path in theirs.items()},
        },
    )
    with agent:
        try:
            running.wait_serving()
            (node,) = until(lambda: running.get("nodes"), 20, lambda: agent.output)
            assert len(node["gpus"]) == 8
            (fabric,) = node["fabrics"]
            assert (fabric["name"], fabric["usable"], fabric["rate_gbps"]) == ("ib-a", True, 400)
            until(lambda: not running.get("server")["settling"])
            explained = running.ctl("explain", "llama-3.1-405b")
            assert re.search("node01: .*/opt/vllm/bin/vllm does not exist", explained)
            assert {model["name"] for model in running.get("models")} == {
                "llama-3.1-405b",
                "qwen2.5-7b",
                "qwen3-embedding",
                "qwen3-32b",
                "embeddings",
            }
            unready = chat(running.api, "llama-large")
            assert unready.status_code == 503
            assert "retry-after" in unready.headers
        finally:
            running.stop()
