"""Real engines behind a real server and real agents: placed, launched, adopted, replaced, and served to clients.

llama.cpp is the `xllamacpp` wheel's server. vLLM is any `vllm` program that LLMGW_TEST_VLLM names (its CPU build
will do), which takes minutes; `scripts/real-vllm` runs that part.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.load import Load
from tests.endtoend.conftest import RunningFleet, edited, llmgw, until
from tests.endtoend.test_coming_back import served

ENGINES = Path(__file__).parent.parent / "engines"
MODEL = "org/tiny"
ALIAS = "tiny"
NODES = ["node01", "node02"]


@dataclass(frozen=True)
class Engine:
    """What is configured, and how long it may take to come up."""

    name: str
    agent: dict[str, Any]
    source: str
    profile: dict[str, Any]
    start_s: float
    tokens: int


def llamacpp(python: str, folder: Path) -> Engine:
    model = folder / "tiny.gguf"
    subprocess.run([python, str(ENGINES / "tiny_gguf.py"), str(model)], check=True)
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{python}" "{ENGINES / "llama_server.py"}" "$@"\n')
    program.chmod(0o755)
    profile = {"engine": "llamacpp", "gpus_per_node": 0}
    return Engine("llamacpp", {"bin": str(program)}, str(model), profile, 60, 200)


def vllm(folder: Path, nodes: int) -> Engine:
    program = os.environ.get("LLMGW_TEST_VLLM")
    if not program:
        pytest.skip("LLMGW_TEST_VLLM names no vllm program")
    python = Path(program).parent / "python"
    subprocess.run([str(python), str(ENGINES / "tiny_qwen2.py"), str(folder / "tiny-qwen2")], check=True)
    profile = {
        "engine": "vllm",
        "nodes": nodes,
        # The simulated GPUs are only counted: the CPU build looks for none.
        "gpus_per_node": 0 if nodes == 1 else 1,
        "args": ["--enforce-eager", "--max-num-seqs", "8", "--dtype", "float32", "--max-model-len", "2048"],
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        "load_timeout": "10m",
        "rendezvous_timeout": "10m",
    }
    return Engine("vllm", {"bin": program}, str(folder / "tiny-qwen2"), profile, 500, 150)


@pytest.fixture(scope="module", params=["llamacpp", "vllm", "vllm on two nodes"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("engine")
    if request.param == "llamacpp":
        return llamacpp(request.getfixturevalue("llama_python"), folder)
    return vllm(folder, 2 if "two" in request.param else 1)


@pytest.fixture(scope="module")
def real(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    """Two nodes of one fabric that run the engine, and a catalog that wants one replica."""

    def adjust(demo: DemoFleet) -> None:
        for node in NODES:
            with edited(demo.folder / node / "agent.yaml") as config:
                config["engines"] = {engine.name: engine.agent}
                config["supervisor"]["stop_timeout"] = "30s"
        with edited(demo.folder / "server.yaml") as config:
            config["models"] = [
                {"name": MODEL, "aliases": [ALIAS], "source": engine.source, "profiles": [engine.profile]}
            ]

    nodes = {node: (f"127.0.0.{11 + at}", "ib-a") for at, node in enumerate(NODES)}
    running = RunningFleet(tmp_path_factory.mktemp("fleet") / "demo", adjust=adjust, nodes=nodes)
    try:
        until(lambda: running.ready(MODEL), engine.start_s, lambda: story(running))
        yield running
    finally:
        running.close()
    assert not running.demo.engines(), "engines were left behind"


def story(fleet: RunningFleet) -> str:
    """What was said about the replica, and its engine's last words."""
    logs = [
        path.read_text(errors="replace")[-3000:]
        for path in sorted(fleet.demo.folder.rglob("work/shards/*/*.log"))
    ]
    return "\n".join([fleet.story(), *logs])


def client(fleet: RunningFleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fleet.demo.api}/v1", api_key="none", max_retries=0, timeout=150)


def ask(tokens: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "Where is the sun?"}],
        "max_tokens": tokens,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }


def leader(fleet: RunningFleet) -> psutil.Process:
    """The engine that serves HTTP."""
    replica = fleet.ready(MODEL)[0]
    shard = next(shard for shard in replica["shards"] if shard["rank"] == 0)
    return psutil.Process(shard["engine_pid"])


@pytest.mark.real_engine
@pytest.mark.timeout(900)
def test_chat_comes_through_the_gateway_whole_and_streamed(real: RunningFleet) -> None:
    whole = client(real).chat.completions.create(model=MODEL, **ask(16))
    text = whole.choices[0].message.content
    assert text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16
    chunks = list(client(real).chat.completions.create(model=ALIAS, stream=True, **ask(16)))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == text
    assert len([piece for piece in pieces if piece]) > 3, "it streams"


@pytest.mark.real_engine
@pytest.mark.timeout(300)
def test_every_flag_that_we_give_is_one_that_the_program_takes(engine: Engine) -> None:
    if engine.name == "llamacpp":
        pytest.skip("the wheel's server has no command line of its own")
    checked = llmgw("ctl", "engine-check", engine.name, "--bin", engine.agent["bin"], timeout_s=120)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.real_engine
@pytest.mark.timeout(900)
def test_the_engine_answers_nobody_but_the_gateway(real: RunningFleet, engine: Engine) -> None:
    process = leader(real)
    tree = [process, *process.children(recursive=True)]
    endpoint = real.ready(MODEL)[0]["endpoint"]
    listening = {f"{each.laddr.ip}:{each.laddr.port}" for one in tree for each in listens(one)}
    assert endpoint in listening
    with httpx.Client(trust_env=False) as stranger:
        answer = stranger.post(
            f"http://{endpoint}/v1/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1},
        )
    assert answer.status_code == 401, answer.text


def listens(process: psutil.Process) -> list[Any]:
    return [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]


@pytest.mark.real_engine
@pytest.mark.timeout(900)
def test_an_agent_that_is_killed_finds_its_engine_again_and_no_request_notices(
    real: RunningFleet, engine: Engine
) -> None:
    before = leader(real).pid
    node = real.ready(MODEL)[0]["nodes"][0]

    async def through() -> list[str | None]:
        load = Load(real.demo.api, [MODEL], clients=2, tokens=engine.tokens)
        load.start()
        await served(load, 1)
        os.kill(real.demo.pid(node), signal.SIGKILL)
        real.demo.start_agent(node)
        await served(load, 8)
        await load.stop()
        return [request.outcome for request in load.failed]

    assert real.run(through(), timeout_s=300) == []
    until(lambda: real.node(node)["last_heard_s"] < 2, 30)
    assert leader(real).pid == before


@pytest.mark.real_engine
@pytest.mark.timeout(900)
def test_an_engine_that_is_killed_leaves_nothing_and_is_replaced(real: RunningFleet, engine: Engine) -> None:
    old = real.ready(MODEL)[0]["replica_id"]
    process = leader(real)
    tree = [process, *process.children(recursive=True)]
    process.kill()
    until(
        lambda: any(replica["replica_id"] != old for replica in real.ready(MODEL)),
        engine.start_s,
        lambda: story(real),
    )
    assert not [each for each in tree if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert client(real).chat.completions.create(model=MODEL, **ask(4)).choices[0].message.content
    assert "failed" in [event for event, _ in real.history(old)]
