"""The command lines and environments that the agent runs for SGLang, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from llmgw.config.agent import Engines, SglangEngine
from llmgw.engines.base import LaunchPlan
from llmgw.engines.registry import adapter
from llmgw.messages.agent import Rendezvous, ShardSpec
from tests.engines.specs import context, spec

ENGINES = Engines(sglang=SglangEngine(python="/opt/sglang/bin/python"))
START = ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]
MEETING = {"rendezvous_host": "10.0.0.5", "rendezvous_port": 21002}


def shard(**changes: Any) -> ShardSpec:
    return spec(**{"engine": "sglang", "source": "org/model", "tensor_parallel": 2, **changes})


def of_two(rank: int) -> ShardSpec:
    meeting = Rendezvous(host="10.0.0.5", port=21002) if rank else None
    return shard(nodes=2, rank=rank, tensor_parallel=4, rendezvous=meeting)


def plan(one: ShardSpec, **node: Any) -> LaunchPlan:
    node_context = context(one, ENGINES, **node)
    assert adapter("sglang").problems(one, node_context) == []
    return adapter("sglang").plan(one, node_context)


def problems(**changes: Any) -> list[str]:
    one = shard(**changes)
    return adapter("sglang").problems(one, context(one, ENGINES))


def test_one_node_serves_the_model_with_its_metrics() -> None:
    one = plan(shard(args=["--context-length", "4096"]), extra_ports=[21003])
    assert one.engine.argv == [
        *START,
        "--model-path", "org/model", "--served-model-name", "tiny", "--host", "10.0.0.5", "--port", "21001",
        "--tp-size", "2", "--pp-size", "1", "--nccl-port", "21003", "--enable-metrics",
        "--context-length", "4096",
    ]  # fmt: skip
    assert one.engine.env["PATH"] == "/opt/sglang/bin:/bin"
    assert one.engine.env["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert (one.files, one.warnings) == ([], [])


def test_every_rank_is_told_its_place_and_where_the_leader_is() -> None:
    leader = plan(of_two(0), **MEETING)
    worker = plan(of_two(1), address="10.0.0.6", http_port=None, extra_ports=[21007], **MEETING)
    place = ["--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "10.0.0.5:21002", "--enable-metrics"]
    assert leader.engine.argv[-7:] == place
    assert worker.engine.argv[3:] == [
        "--model-path", "org/model", "--served-model-name", "tiny", "--host", "10.0.0.6", "--port", "21007",
        "--tp-size", "4", "--pp-size", "1", *place[:3], "1", *place[4:],
    ]  # fmt: skip
    assert leader.engine.env["SGLANG_HOST_IP"] == "10.0.0.5"
    assert worker.engine.env["SGLANG_HOST_IP"] == "10.0.0.6"
    assert (worker.load, worker.readiness) == (None, None)
    config = context(shard(), ENGINES).config
    assert [adapter("sglang").extra_ports(one, config) for one in (shard(), of_two(0), of_two(1))] == [1, 0, 1]


def test_an_ipv6_meeting_place_is_written_with_brackets() -> None:
    meeting = {"rendezvous_host": "fd00::5", "rendezvous_port": 21002}
    assert "[fd00::5]:21002" in plan(of_two(0), **meeting).engine.argv


def test_the_key_travels_in_a_file_and_never_on_the_command_line() -> None:
    one = plan(shard(), api_key='s3c"r3t')
    (file,) = one.files
    assert yaml.safe_load(file.content) == {"api-key": 's3c"r3t'}
    assert file.path == "/work/r1-0/sglang-key.yaml"
    assert one.engine.argv[3:5] == ["--config", file.path]
    assert not any("s3c" in argument for argument in one.engine.argv)
    assert "s3c" not in repr(one)
    assert one.readiness is not None
    assert one.readiness.headers["authorization"] == 'Bearer s3c"r3t'


def test_without_gpus_it_is_told_to_use_the_cpu() -> None:
    argv = plan(shard(gpus=[], tensor_parallel=1)).engine.argv
    assert argv[argv.index("--device") + 1] == "cpu"
    assert "--device" not in plan(shard()).engine.argv


@pytest.mark.parametrize(("task", "embeds"), [("chat", False), ("embedding", True), ("rerank", True)])
def test_embedding_models_are_said_to_be_ones(task: str, embeds: bool) -> None:
    assert ("--is-embedding" in plan(shard(task=task)).engine.argv) is embeds


def test_a_gguf_file_is_loaded_as_one() -> None:
    argv = plan(shard(source="https://h/x.gguf"), model_path="/m/x.gguf").engine.argv
    assert argv[argv.index("--model-path") + 1] == "/m/x.gguf"
    assert argv[argv.index("--load-format") + 1] == argv[argv.index("--quantization") + 1] == "gguf"


def test_groups_that_share_their_gpus_take_none_of_their_own() -> None:
    assert problems(args=["--dp-size", "2", "--enable-dp-attention"]) == []
    assert "takes 4 GPUs" in problems(args=["--dp", "2"])[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": "org/x-GGUF"}, "give the path or URL"),
        ({"task": "score"}, "'score'"),
        ({"served_names": ["qwen3:8b"]}, "LoRA adapter"),
        ({"tensor_parallel": 4}, "takes 4 GPUs"),
        ({"args": ["--tp", "3"]}, "tensor_parallel 3"),
        ({"args": ["--context-length", "4K"]}, "plain whole number"),
        ({"args": ["--context_length", "4096"]}, "write --context-length"),
        ({"args": ["--dist-init", "h:1"]}, "takes for --dist-init-addr"),
        ({"args": ["--api-key", "k"]}, "key of its own"),
        ({"args": ["--admin-api-key=k"]}, "key of its own"),
        ({"args": ["--base-gpu-id", "1"]}, "GPUs"),
        ({"args": ["--grpc-port", "1"]}, "would open a server"),
        ({"args": ["--metrics-port", "1"]}, "would open a server"),
        ({"args": ["--metrics-host=0.0.0.0"]}, "would open a server"),
        ({"env": {"SMG_SGLANG_SERVICER_METRICS_PORT": "1"}}, "would open a server"),
        ({"args": ["--config", "/x.yaml"]}, "a file could set"),
        ({"args": ["--served-model-name", "x"]}, "--served-model-name"),
        ({"env": {"SGLANG_GRPC_PORT": "1"}}, "SGLANG_GRPC_PORT"),
        ({"env": {"HOST_IP": "1"}}, "HOST_IP"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(changes: dict[str, Any], words: str) -> None:
    (sentence,) = problems(**changes)
    assert words in sentence
