"""A real llama.cpp is given a URL: its agent fetches the file, and clients talk to it through the gateway."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from llmgw.sim.demo_fleet import DemoFleet
from tests.agent.file_server import FileServer
from tests.endtoend.conftest import RunningFleet, edited, until
from tests.endtoend.test_real_engines import Engine, ask, client, llamacpp, story

MODEL = "org/tiny"
SMALL = 64 * 1024


@pytest.fixture(scope="module")
def engine(llama_python: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return llamacpp(llama_python, tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def files(engine: Engine) -> Iterator[FileServer]:
    with FileServer(Path(engine.source).read_bytes()) as server:
        # The connection breaks once: what the engine loads was put together from two answers.
        server.cuts = [SMALL]
        yield server


@pytest.fixture(scope="module")
def real(engine: Engine, files: FileServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    fetched = replace(engine, source=files.url("/tiny.gguf"))
    checksum = "sha256:" + hashlib.sha256(files.content).hexdigest()

    def adjust(demo: DemoFleet) -> None:
        with edited(demo.folder / "node01" / "agent.yaml") as config:
            config["engines"] = {fetched.name: fetched.agent}
        with edited(demo.folder / "server.yaml") as config:
            model = {"name": MODEL, "source": fetched.source, "checksum": checksum}
            config["models"] = [{**model, "profiles": [fetched.profile]}]

    nodes = {"node01": ("127.0.0.11", "ib-a")}
    running = RunningFleet(tmp_path_factory.mktemp("fleet") / "demo", adjust=adjust, nodes=nodes)
    try:
        until(lambda: running.ready(MODEL), fetched.start_s, lambda: story(running))
        yield running
    finally:
        running.close()
    assert not running.demo.engines(), "engines were left behind"


@pytest.mark.real_engine
@pytest.mark.timeout(300)
def test_a_model_given_by_its_url_is_fetched_and_answers_through_the_gateway(
    real: RunningFleet, files: FileServer
) -> None:
    whole = client(real).chat.completions.create(model=MODEL, **ask(8))
    assert whole.choices[0].message.content
    chunks = list(client(real).chat.completions.create(model=MODEL, stream=True, **ask(8)))
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 3, "it streams"

    name = f"http/127.0.0.1:{files.port}/tiny.gguf"
    [node] = real.ctl_json("models", "--on-disk")
    [file] = node["files"]
    assert (file["name"], file["state"], file["models"]) == (name, "complete", [MODEL])
    [shard] = real.ready(MODEL)[0]["shards"]
    command = psutil.Process(shard["engine_pid"]).cmdline()
    assert command[command.index("--model") + 1] == f"{node['dir']}/{name}"
    assert [headers.get("range") for _, headers in files.asked] == [None, f"bytes={SMALL}-"]


@pytest.mark.real_engine
@pytest.mark.timeout(300)
def test_a_replica_that_is_started_anew_loads_what_is_there(real: RunningFleet, files: FileServer) -> None:
    asked = len(files.asked)
    old = real.ready(MODEL)[0]["replica_id"]
    psutil.Process(real.ready(MODEL)[0]["shards"][0]["engine_pid"]).kill()
    until(lambda: any(replica["replica_id"] != old for replica in real.ready(MODEL)), 60, lambda: story(real))
    assert client(real).chat.completions.create(model=MODEL, **ask(4)).choices[0].message.content
    assert len(files.asked) == asked
