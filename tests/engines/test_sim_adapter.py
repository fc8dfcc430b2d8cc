"""The command line that the agent runs for a simulated shard."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from llmgw.config.agent import Engines, SimEngine
from llmgw.engines.registry import adapter
from llmgw.engines.sim import SimAdapter
from llmgw.messages.agent import Rendezvous
from tests.engines.specs import context, spec

START = [sys.executable, "-m", "llmgw", "sim", "engine"]


def test_a_single_node_replica_serves_its_names_at_the_nodes_address() -> None:
    shard = spec(args=["--load-s", "5", "--tokens-per-s", "50"])
    plan = adapter("sim").plan(shard, context(shard))
    assert plan.engine.argv == [
        *START,
        "--host", "10.0.0.5", "--port", "21001", "--served-name", "tiny", "--served-name", "small",
        "--gpus", "2", "--load-s", "5", "--tokens-per-s", "50",
    ]  # fmt: skip
    assert plan.sidecars == []


def test_a_leader_waits_at_its_own_address_and_a_worker_dials_it_and_serves_nothing() -> None:
    node = {"rendezvous_host": "10.0.0.5", "rendezvous_port": 21002}
    leader = spec(nodes=3, rendezvous_timeout_s=90.0)
    assert adapter("sim").plan(leader, context(leader, **node)).engine.argv == [
        *START,
        "--host", "10.0.0.5", "--port", "21001", "--served-name", "tiny", "--served-name", "small", "--gpus", "2",
        "--group", "r1", "--rank", "0", "--nnodes", "3", "--rendezvous-host", "10.0.0.5",
        "--rendezvous-port", "21002", "--rendezvous-timeout-s", "90",
    ]  # fmt: skip
    worker = spec(nodes=3, rank=2, rendezvous=Rendezvous(host="10.0.0.5", port=21002))
    plan = adapter("sim").plan(worker, context(worker, http_port=None, **node))
    assert plan.engine.argv == [
        *START,
        "--served-name", "tiny", "--served-name", "small", "--gpus", "2", "--group", "r1", "--rank", "2",
        "--nnodes", "3", "--rendezvous-host", "10.0.0.5", "--rendezvous-port", "21002",
        "--rendezvous-timeout-s", "120",
    ]  # fmt: skip
    assert plan.load is None
    assert plan.readiness is None


def test_the_environment_is_what_engines_need_and_the_shards_own_gpus() -> None:
    shard = spec(env={"HOME": "/tmp", "NCCL_DEBUG": "INFO"})
    base = {"PATH": "/bin", "HOME": "/root", "AWS_SECRET": "s", "LLMGW_SIM_HARDWARE": "/sim/node01"}
    assert adapter("sim").plan(shard, context(shard, base_env=base)).engine.env == {
        "PATH": "/bin",
        "HOME": "/tmp",
        "NCCL_DEBUG": "INFO",
        "LLMGW_SIM_HARDWARE": "/sim/node01",
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
    }


@pytest.mark.parametrize(
    ("task", "path", "body"),
    [
        ("chat", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
        ("completion", "/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
        ("embedding", "/v1/embeddings", {"input": "Hi"}),
        ("rerank", "/v1/rerank", {"query": "Hi", "documents": ["Hi"]}),
        ("score", "/v1/score", {"text_1": "Hi", "text_2": "Hi"}),
    ],
)
def test_readiness_is_one_token_of_the_models_task(task: str, path: str, body: dict[str, Any]) -> None:
    shard = spec(task=task)
    check = adapter("sim").plan(shard, context(shard)).readiness
    assert check is not None
    assert (check.method, check.path) == ("POST", path)
    assert json.loads(check.body or b"") == {"model": "tiny", **body}


@pytest.mark.parametrize(
    "args",
    [["--host", "::"], ["--port=1"], ["--served-name", "gpt-4"], ["--rank", "1"], ["--rendezvous_port", "1"]],
)
def test_a_profile_may_not_move_the_engine_or_change_its_place_in_the_replica(args: list[str]) -> None:
    shard = spec(args=args)
    (sentence,) = adapter("sim").problems(shard, context(shard))
    assert args[0].partition("=")[0] in sentence


def test_a_task_that_it_does_not_do_and_a_forbidden_variable_are_sentences() -> None:
    shard = spec(task="transcription", env={"LD_PRELOAD": "x.so"})
    task, variable = adapter("sim").problems(shard, context(shard))
    assert "'transcription'" in task
    assert "chat, completion, embedding, rerank, score" in task
    assert "LD_PRELOAD" in variable
    assert adapter("sim").problems(spec(), context(spec())) == []


def test_ranks_of_several_nodes_are_told_their_networks_as_real_engines_are() -> None:
    shard = spec(nodes=2, env={"NCCL_IB_HCA": "mlx5_1"})
    node = {"rendezvous_host": "10.0.0.5", "rendezvous_port": 21002, "mgmt_interface": "eno1"}
    env = adapter("sim").plan(shard, context(shard, adapters=["mlx5_0:1", "mlx5_1:1"], **node)).engine.env
    assert (env["NCCL_SOCKET_IFNAME"], env["NCCL_IB_HCA"]) == ("=eno1", "=mlx5_1:1")


def test_the_key_is_in_the_environment_and_in_the_checks() -> None:
    plan = adapter("sim").plan(spec(), context(spec(), api_key="s3cr3t"))
    assert plan.engine.env["LLMGW_SIM_API_KEY"] == "s3cr3t"
    assert plan.load is not None
    assert plan.load.headers == {"authorization": "Bearer s3cr3t"}
    assert plan.readiness is not None
    assert plan.readiness.headers["authorization"] == "Bearer s3cr3t"


def test_it_is_off_unless_it_is_asked_for() -> None:
    assert not SimAdapter().offered(context(spec()).config)
    assert SimAdapter().offered(context(spec(), Engines(sim=SimEngine(enabled=True))).config)
