"""The command lines and environments that the agent runs for vLLM, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmgw.config.agent import Engines, VllmEngine
from llmgw.engines.base import LaunchPlan
from llmgw.engines.registry import adapter
from llmgw.messages.agent import Gpu, Rendezvous, ShardSpec
from tests.engines.recorded import help_words
from tests.engines.specs import context, spec

ENGINES = Engines(vllm=VllmEngine(bin="/opt/vllm/bin/vllm"))
OVER_RAY = Engines(vllm=VllmEngine(bin="/opt/vllm/bin/vllm", launch_mode="ray"))
MEETING = {"rendezvous_host": "10.0.0.5", "rendezvous_port": 21002}


def shard(**changes: Any) -> ShardSpec:
    return spec(**{"engine": "vllm", "source": "org/model", "tensor_parallel": 2, **changes})


def of_two(rank: int, **changes: Any) -> ShardSpec:
    meeting = Rendezvous(host="10.0.0.5", port=21002) if rank else None
    return shard(**{"nodes": 2, "rank": rank, "tensor_parallel": 4, "rendezvous": meeting, **changes})


def plan(one: ShardSpec, engines: Engines = ENGINES, **node: Any) -> LaunchPlan:
    node_context = context(one, engines, **node)
    assert adapter("vllm").problems(one, node_context) == []
    return adapter("vllm").plan(one, node_context)


def problems(engines: Engines = ENGINES, node: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    one = shard(**changes)
    return adapter("vllm").problems(one, context(one, engines, **(node or {})))


def test_one_node_serves_the_models_names_at_the_nodes_address() -> None:
    one = plan(shard(args=["--max-model-len", "4096"]), mgmt_interface="eno1")
    assert one.engine.argv == [
        "/opt/vllm/bin/vllm", "serve", "org/model", "--served-model-name", "tiny", "small",
        "--host", "10.0.0.5", "--port", "21001", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "1",
        "--runner", "generate", "--shutdown-timeout", "30", "--max-model-len", "4096",
    ]  # fmt: skip
    assert one.engine.env == {
        "PATH": "/opt/vllm/bin:/bin",
        "HOME": "/root",
        "PYTHONUNBUFFERED": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "NCCL_SOCKET_IFNAME": "=eno1",
        "GLOO_SOCKET_IFNAME": "eno1",
        "TP_SOCKET_IFNAME": "eno1",
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
    }
    assert (one.sidecars, one.files, one.warnings) == ([], [], [])


def test_the_leader_and_its_headless_workers_meet_at_the_leaders_address() -> None:
    leader = plan(of_two(0), address="10.0.0.5", **MEETING)
    worker = plan(of_two(1), address="10.0.0.6", http_port=None, **MEETING)
    assert leader.engine.argv[-10:] == [
        "--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.5", "--master-port", "21002",
        "--shutdown-timeout", "30",
    ]  # fmt: skip
    assert worker.engine.argv == [
        "/opt/vllm/bin/vllm", "serve", "org/model", "--served-model-name", "tiny", "small",
        "--tensor-parallel-size", "4", "--pipeline-parallel-size", "1", "--runner", "generate",
        "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.5", "--master-port", "21002", "--headless",
    ]  # fmt: skip
    assert leader.engine.env["VLLM_HOST_IP"] == "10.0.0.5"
    assert worker.engine.env["VLLM_HOST_IP"] == "10.0.0.6"
    assert leader.readiness is not None
    assert (worker.load, worker.readiness) == (None, None)


def test_over_ray_a_head_starts_first_and_a_worker_is_the_process_that_joins_it() -> None:
    ports = list(range(21010, 21017))
    leader = plan(of_two(0), OVER_RAY, extra_ports=ports, api_key="k", adapters=["mlx5_0:1"], **MEETING)
    (head,) = leader.sidecars
    assert head.argv[:8] == [
        "/opt/vllm/bin/ray", "start", "--head", "--port", "21002", "--include-dashboard", "false",
        "--node-ip-address",
    ]  # fmt: skip
    assert head.argv[-2:] == ["--disable-usage-stats", "--block"]
    assert {str(port) for port in ports} <= set(head.argv)
    assert "VLLM_API_KEY" not in head.env
    assert leader.engine.waits_for == Rendezvous(host="10.0.0.5", port=21002)
    at = leader.engine.argv.index("--distributed-executor-backend")
    assert leader.engine.argv[at + 1] == "ray"
    assert "--nnodes" not in leader.engine.argv, "vLLM refuses nodes of its own over Ray"
    assert leader.engine.env["RAY_ADDRESS"] == "10.0.0.5:21002"

    worker = plan(of_two(1), OVER_RAY, address="10.0.0.6", http_port=None, extra_ports=ports[:6], **MEETING)
    assert worker.engine.argv[:7] == [
        "/opt/vllm/bin/ray", "start", "--address", "10.0.0.5:21002", "--node-ip-address", "10.0.0.6",
        "--num-gpus",
    ]  # fmt: skip
    assert worker.engine.argv[-1] == "--block"
    assert worker.engine.env["VLLM_HOST_IP"] == "10.0.0.6"
    assert worker.sidecars == []
    assert adapter("vllm").extra_ports(of_two(0), context(of_two(0), OVER_RAY).config) == 7
    assert adapter("vllm").extra_ports(of_two(1), context(of_two(1), OVER_RAY).config) == 6
    assert adapter("vllm").extra_ports(of_two(0), context(of_two(0), ENGINES).config) == 0


def test_rays_flags_are_in_its_own_help() -> None:
    ports = list(range(21010, 21017))
    node: dict[str, Any] = {"extra_ports": ports, **MEETING}
    (head,) = plan(of_two(0), OVER_RAY, **node).sidecars
    worker = plan(of_two(1), OVER_RAY, http_port=None, **node).engine
    known = set(help_words("ray-start-help.txt"))
    for process in (head, worker):
        assert {word for word in process.argv if word.startswith("--")} <= known


def test_over_ray_no_node_is_given_the_leaders_interfaces_or_key() -> None:
    leader = plan(of_two(0), OVER_RAY, extra_ports=list(range(21010, 21017)), api_key="k", **MEETING)
    (file,) = leader.files
    assert file.path == f"{leader.engine.env['VLLM_CONFIG_ROOT']}/ray_non_carry_over_env_vars.json"
    kept = set(json.loads(file.content))
    assert {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "VLLM_HOST_IP", "VLLM_API_KEY"} <= kept


def test_over_ray_gpus_are_counted_in_the_order_of_the_bus() -> None:
    env = plan(of_two(1), OVER_RAY, http_port=None, extra_ports=list(range(6)), **MEETING).engine.env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("0,1", "PCI_BUS_ID")
    mig = [Gpu(index=0, uuid="MIG-1", name="H100"), Gpu(index=1, uuid="MIG-2", name="H100")]
    (sentence,) = adapter("vllm").problems(of_two(0), context(of_two(0), OVER_RAY, gpus=mig, **MEETING))
    assert "launch_mode: mp" in sentence


def test_a_long_work_dir_does_not_make_rays_sockets_longer_than_the_kernel_takes() -> None:
    for work_dir in ("/w/r1-0", "/var/lib/llmgw-agent/shards/llama-3-1-405b-7f3a2c1d.0/run"):
        node = {"work_dir": work_dir, "http_port": None, "extra_ports": list(range(6)), **MEETING}
        argv = plan(of_two(1), OVER_RAY, **node).engine.argv
        folder = argv[argv.index("--temp-dir") + 1]
        assert len(f"{folder}/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store") <= 107


def test_the_key_is_given_by_the_environment_and_the_checks_carry_it() -> None:
    one = plan(shard(), api_key="s3cr3t")
    assert one.engine.env["VLLM_API_KEY"] == "s3cr3t"
    for check in (one.load, one.readiness):
        assert check is not None
        assert check.headers["authorization"] == "Bearer s3cr3t"
    assert not any("s3cr3t" in argument for argument in one.engine.argv)
    assert "s3cr3t" not in repr(one)
    assert "s3cr3t" not in repr(context(shard(), ENGINES, api_key="s3cr3t"))


@pytest.mark.parametrize(
    ("task", "runner", "path"),
    [
        ("chat", "generate", "/v1/chat/completions"),
        ("completion", "generate", "/v1/completions"),
        ("embedding", "pooling", "/v1/embeddings"),
        ("rerank", "pooling", "/v1/rerank"),
        ("score", "pooling", "/v1/score"),
        ("transcription", "generate", "/v1/audio/transcriptions"),
    ],
)
def test_the_models_task_chooses_the_runner_and_the_probe(task: str, runner: str, path: str) -> None:
    one = plan(shard(task=task))
    assert one.engine.argv[one.engine.argv.index("--runner") + 1] == runner
    assert one.readiness is not None
    assert one.readiness.path == path


def test_what_a_profile_sets_wins_and_contradictions_are_told() -> None:
    one = plan(
        shard(args=["-tp=1", "-pp", "2", "--runner", "generate"], env={"VLLM_NO_USAGE_STATS": "0"}),
        mgmt_interface="eno1",
    )
    assert "--tensor-parallel-size" not in one.engine.argv
    assert one.engine.argv[-5:] == ["-tp=1", "-pp", "2", "--runner", "generate"]
    assert one.engine.env["VLLM_NO_USAGE_STATS"] == "0"
    assert len(one.warnings) == 3
    assert any("-tp 1" in warning for warning in one.warnings)
    assert not any("--runner" in warning for warning in one.warnings)


def test_half_of_the_time_to_stop_is_for_streams_to_end() -> None:
    assert plan(shard(stop_timeout_s=10.0)).engine.argv[-2:] == ["--shutdown-timeout", "5"]
    assert "--shutdown-timeout" not in plan(shard(stop_timeout_s=1.0)).engine.argv


def test_a_source_may_be_a_folder_a_name_or_what_was_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan(shard(source="/models/x")).engine.argv[2] == "/models/x"
    assert plan(shard(source="./x")).engine.argv[2] == f"{tmp_path}/x"
    assert plan(shard(source="s3://bucket/x")).engine.argv[2] == "s3://bucket/x"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": ""}, "no source"),
        ({"source": "/m/x.gguf"}, "engine: llamacpp"),
        ({"source": "unsloth/Qwen3-GGUF"}, "engine: llamacpp"),
        ({"source": "~/x"}, "absolute path"),
        ({"source": "a/b/c"}, "neither a path"),
        ({"source": "--host"}, "neither a path"),
        ({"task": "dance"}, "'dance'"),
        ({"tensor_parallel": 4}, "tensor_parallel 4, which takes 4 GPUs, and its replica has 1 × 2 = 2"),
        ({"args": ["-tp", "4"]}, "takes 4 GPUs"),
        ({"args": ["--data-parallel-size", "2"]}, "data_parallel 2"),
        ({"args": ["-tp", "two"]}, "no whole number"),
        ({"nodes": 3, "tensor_parallel": 4}, "does not divide over 3 nodes"),
        ({"nodes": 2, "tensor_parallel": 2, "args": ["-dp", "2"]}, "several nodes"),
        ({"rank": 1}, "rank 1"),
        ({"args": ["--max-model-len", "4k"]}, "plain whole number"),
        ({"args": ["--max-model=4K"]}, "plain whole number"),
        ({"args": ["-q", "gguf"]}, "llama.cpp's format"),
        ({"args": ["--quantization=Q4_K_M"]}, "llama.cpp's format"),
        ({"args": ["--load-f", "gguf"]}, "llama.cpp's format"),
        ({"args": ["--task", "embed"]}, "--runner and --convert"),
        ({"args": ["--hos", "0.0.0.0"]}, "takes for --host"),
        ({"args": ["--uds", "/tmp/s"]}, "--uds"),
        ({"args": ["-n2"]}, "takes for -n"),
        ({"args": ["--node_rank=1"]}, "--node_rank"),
        ({"args": ["--master-port", "1"]}, "--master-port"),
        ({"args": ["--config", "x.yaml"]}, "a file could set"),
        ({"args": ["--device-ids", "0"]}, "GPUs"),
        ({"args": ["--distributed-executor-backend", "ray"]}, "launch_mode"),
        ({"args": ["--hf-token", "hf_x"]}, "HF_TOKEN"),
        ({"env": {"VLLM_HOST_IP": "10.9.9.9"}}, "VLLM_HOST_IP"),
        ({"env": {"VLLM_API_KEY": "k"}}, "VLLM_API_KEY"),
        ({"env": {"RANK": "1"}}, "RANK"),
        ({"env": {"GLOO_SOCKET_IFNAME": "eth9"}}, "GLOO_SOCKET_IFNAME"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(changes: dict[str, Any], words: str) -> None:
    (sentence,) = problems(**changes)
    assert words in sentence


def test_one_fetched_file_is_refused_before_it_is_fetched() -> None:
    for source, words in [
        ("https://h/model.safetensors", "is one file, and vllm loads a folder"),
        ("https://h/x.gguf?download=true", "engine: llamacpp"),
    ]:
        fetched = shard(source=source)
        node = context(fetched, ENGINES, model_path="/weights/" + source.rpartition("/")[2].partition("?")[0])
        (sentence,) = adapter("vllm").problems(fetched, node)
        assert words in sentence


def test_on_the_cpu_any_parallelism_will_do() -> None:
    assert problems(gpus=[], tensor_parallel=2) == []


def test_what_no_key_locks_is_told() -> None:
    (warning,) = plan(shard(env={"VLLM_SERVER_DEV_MODE": "1"})).warnings
    assert "/collective_rpc" in warning
