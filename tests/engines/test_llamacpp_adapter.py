"""The command line that the agent runs for a GGUF file, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw.config.agent import Engines, LlamacppEngine
from llmgw.engines.registry import adapter
from tests.engines.specs import context, spec

ENGINES = Engines(llamacpp=LlamacppEngine(bin="/opt/llama-server", parallel=2))


def gguf(**changes: Any) -> Any:
    return spec(**{"engine": "llamacpp", "source": "/models/tiny.gguf", **changes})


def problems(**changes: Any) -> list[str]:
    shard = gguf(**changes)
    return adapter("llamacpp").problems(shard, context(shard, ENGINES))


def test_a_file_is_served_under_its_names_on_the_shards_gpus() -> None:
    shard = gguf(args=["--ctx-size", "4096"], env={"LLAMA_ARG_SSE_PING_INTERVAL": "5"})
    plan = adapter("llamacpp").plan(shard, context(shard, ENGINES))
    assert plan.engine.argv == [
        "/opt/llama-server", "--model", "/models/tiny.gguf", "--alias", "tiny,small",
        "--host", "10.0.0.5", "--port", "21001", "--metrics", "--no-webui", "--parallel", "2",
        "--ctx-size", "4096",
    ]  # fmt: skip
    assert plan.engine.env == {
        "PATH": "/bin",
        "HOME": "/root",
        "LLAMA_ARG_SSE_PING_INTERVAL": "5",
        "LLAMA_ARG_KV_UNIFIED": "true",
        "LLAMA_ARG_CORS_ORIGINS": "localhost",
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
    }
    assert plan.load is not None
    assert (plan.load.method, plan.load.path) == ("GET", "/health")
    assert plan.readiness is not None
    assert plan.readiness.path == "/v1/chat/completions"


def test_the_key_is_given_by_the_environment_and_the_checks_carry_it() -> None:
    plan = adapter("llamacpp").plan(gguf(), context(gguf(), ENGINES, api_key="s3cr3t"))
    assert plan.engine.env["LLAMA_API_KEY"] == "s3cr3t"
    assert plan.readiness is not None
    assert plan.readiness.headers["authorization"] == "Bearer s3cr3t"
    assert not any("s3cr3t" in argument for argument in plan.engine.argv)
    assert "s3cr3t" not in repr(plan)


def test_without_a_key_of_its_own_it_takes_none_from_the_agents_environment() -> None:
    assert "LLAMA_API_KEY" not in adapter("llamacpp").plan(gguf(), context(gguf(), ENGINES)).engine.env


def test_what_a_profile_sets_against_us_is_told() -> None:
    shard = gguf(env={"LLAMA_ARG_KV_UNIFIED": "false"}, args=["--no-webui"])
    plan = adapter("llamacpp").plan(shard, context(shard, ENGINES))
    (warning,) = plan.warnings
    assert "LLAMA_ARG_KV_UNIFIED" in warning
    assert plan.engine.argv.count("--no-webui") == 1


def test_a_fetched_file_is_loaded_from_where_the_agent_put_it() -> None:
    shard = gguf(source="https://example.org/x.gguf")
    where = context(shard, ENGINES, model_path="/weights/https/example.org/x.gguf")
    assert adapter("llamacpp").problems(shard, where) == []
    argv = adapter("llamacpp").plan(shard, where).engine.argv
    assert argv[1:3] == ["--model", "/weights/https/example.org/x.gguf"]
    other = gguf(source="https://example.org/x.safetensors")
    (sentence,) = adapter("llamacpp").problems(other, context(other, ENGINES, model_path="/w/x.safetensors"))
    assert "not a GGUF file" in sentence


def test_without_gpus_every_device_is_hidden_from_it() -> None:
    shard = gguf(gpus=[], task="embedding")
    plan = adapter("llamacpp").plan(shard, context(shard, ENGINES))
    assert plan.engine.argv[-5:] == ["--embeddings", "--parallel", "2", "--device", "none"]
    assert plan.engine.env["CUDA_VISIBLE_DEVICES"] == ""


def test_a_profile_may_say_how_many_requests_run_at_a_time() -> None:
    shard = gguf(args=["-np", "8"])
    argv = adapter("llamacpp").plan(shard, context(shard, ENGINES)).engine.argv
    assert argv[-2:] == ["-np", "8"]
    assert "--parallel" not in argv


def test_a_relative_path_is_seen_from_the_agents_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shard = gguf(source="./tiny.gguf")
    assert problems(source="./tiny.gguf") == []
    argv = adapter("llamacpp").plan(shard, context(shard, ENGINES)).engine.argv
    assert argv[2] == f"{tmp_path}/tiny.gguf"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": 2}, "2 nodes"),
        ({"source": "google/gemma-3"}, "not a path"),
        ({"source": "s3://bucket/x.gguf"}, "no URL that llmgw fetches"),
        ({"source": "/models/x.safetensors"}, ".gguf"),
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, "in one way only"),
        ({"gpus": [], "tensor_parallel": 2}, "without GPUs"),
        ({"task": "transcription"}, "'transcription'"),
        ({"args": ["--host", "0.0.0.0"]}, "--host"),
        ({"args": ["-a", "gpt-4"]}, "-a"),
        ({"args": ["--api_key", "x"]}, "--api_key"),
        ({"args": ["-dev", "CUDA0"]}, "-dev"),
        ({"args": ["--mmproj-device", "CUDA1"]}, "--mmproj-device"),
        ({"env": {"MTMD_BACKEND_DEVICE": "CUDA1"}}, "MTMD_BACKEND_DEVICE"),
        ({"args": ["--rpc", "10.0.0.9:50052"]}, "--rpc"),
        ({"args": ["--ctx-size=4096"]}, "--ctx-size and its value"),
        ({"args": ["--hf-token", "x"]}, "HF_TOKEN"),
        ({"args": ["--gpt-oss-20b-default"]}, "source says what is loaded"),
        ({"args": ["-sm", "none"]}, "uses one GPU"),
        ({"args": ["--ctx_size", "4k"]}, "it takes 4k for 4"),
        ({"args": ["-c", "4k"]}, "it takes 4k for 4"),
        ({"env": {"LLAMA_API_KEY": "x"}}, "LLAMA_API_KEY"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(changes: dict[str, Any], words: str) -> None:
    (sentence,) = problems(**changes)
    assert words in sentence


def test_values_that_look_like_flags_are_not_mistaken_for_them() -> None:
    assert problems(args=["--n-predict", "-1", "--chat-template-kwargs", '{"a": "--host"}']) == []
