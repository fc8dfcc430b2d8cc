"""SGLang: its launch server under a Python that has it installed, one process tree a node.

Flags and behaviour as of 0.5.23. It takes one served name and answers to any, so aliases need no rewriting.
"""

from __future__ import annotations

import json

from llmgw.config.addresses import join_host_port
from llmgw.config.agent import AgentConfig, SglangEngine
from llmgw.engines.base import HttpCheck, LaunchContext, LaunchPlan, PlanFile, ProcessPlan
from llmgw.engines.command_line import Reading, Setting, compose, has_flag, setting
from llmgw.engines.figures import FigureNames
from llmgw.engines.networks import (
    REFUSED_NETWORK_ENV,
    beside_networks,
    network_env,
    network_files,
    network_problems,
)
from llmgw.engines.overrides import (
    merge_env,
    refused_args,
    refused_env,
    secret_warnings,
    size_problems,
    spelling_problems,
)
from llmgw.engines.parallelism import parallel_problems, rank_problems
from llmgw.engines.probes import one_token_check, with_key
from llmgw.engines.programs import python_env
from llmgw.engines.sources import is_gguf, located, source_problems
from llmgw.messages.agent import ShardSpec

READING = Reading(abbreviations=True, equals=True)

# What the task needs beside the model; a reranker is an embedding model that reads pairs.
_TASK_SETTINGS: dict[str, list[Setting]] = {
    "chat": [],
    "completion": [],
    "embedding": [setting("--is-embedding")],
    "rerank": [setting("--is-embedding")],
}

_TENSOR = ("--tp-size", "--tensor-parallel-size")
_PIPELINE = ("--pp-size", "--pipeline-parallel-size")
_DATA = ("--dp-size", "--data-parallel-size")
# With one of these the data parallel groups share the tensor parallel GPUs instead of taking their own.
_SHARED_DATA = ("--enable-dp-attention", "--attn-dp-size", "--attention-data-parallel-size")

_ADDRESS = "the agent chooses where an engine listens"
_REPLICA = "the control plane decides a replica's shape and ranks"
_DEVICE = "the agent chooses a shard's GPUs"
_MODEL = "the model's source says what is loaded"
_KEY = "the agent gives the engine a key of its own, in a file"
_TLS = "the gateway speaks plain HTTP to engines"
_OTHER_SERVER = "it would open a server that the agent knows nothing of"
_FABRIC = "the agent chooses the fabric's adapters"
REFUSED_ARGS = {
    **dict.fromkeys(["--host", "--port", "--fastapi-root-path"], _ADDRESS),
    **dict.fromkeys(["--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr"], _REPLICA),
    **dict.fromkeys(["--nccl-port", "--use-ray"], _REPLICA),
    **dict.fromkeys(["--base-gpu-id", "--gpu-id-step", "--device"], _DEVICE),
    **dict.fromkeys(["--disaggregation-ib-device", "--mooncake-ib-device"], _FABRIC),
    **dict.fromkeys(["--model-path", "--model"], _MODEL),
    "--served-model-name": "the model's name is the catalog's",
    **dict.fromkeys(["--api-key", "--admin-api-key"], _KEY),
    **dict.fromkeys(["--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"], _TLS),
    "--ssl-keyfile-password": _TLS,
    **dict.fromkeys(["--grpc-mode", "--smg-grpc-mode", "--grpc-port", "--gated-launch-port"], _OTHER_SERVER),
    **dict.fromkeys(["--sidecar", "--sidecar-args"], _OTHER_SERVER),
    **dict.fromkeys(["--metrics-host", "--metrics-port"], _OTHER_SERVER),
    **dict.fromkeys(["--smg-http-sidecar-port", "--grpc-http-sidecar-port"], _OTHER_SERVER),
    "--config": "a file could set what a profile may not; give the flags themselves",
}
"""Flags by every spelling, and why no profile gives them."""

REFUSED_ENV = {
    **REFUSED_NETWORK_ENV,
    **dict.fromkeys(["SGLANG_HOST_IP", "HOST_IP", "SGLANG_LOCAL_IP_NIC", "SGLANG_PORT"], _ADDRESS),
    **dict.fromkeys(["SGLANG_API_KEY", "SGLANG_ADMIN_API_KEY"], _KEY),
    "SGLANG_GRPC_PORT": _OTHER_SERVER,
    "SMG_SGLANG_SERVICER_METRICS_HOST": _OTHER_SERVER,
    "SMG_SGLANG_SERVICER_METRICS_PORT": _OTHER_SERVER,
    "SGLANG_BLOCK_NONZERO_RANK_CHILDREN": _REPLICA,
}
"""Variables, the same."""

SIZES = (
    *("--context-length", "--max-total-tokens", "--max-running-requests", "--max-queued-requests"),
    *("--max-prefill-tokens", "--chunked-prefill-size"),
)

# Its `/health` generates a token itself, and gives up after SGLANG_HEALTH_CHECK_TIMEOUT (20 s).
_HEALTH_TIMEOUT_S = 25.0
_READ = 'sglang:realtime_tokens_total{mode="prefill_compute"}'
_CACHED = 'sglang:realtime_tokens_total{mode="prefill_cache"}'


class SglangAdapter:
    """Plans for `python -m sglang.launch_server`."""

    name = "sglang"
    # The first grows with every batch; the others only when a request ends.
    progress_counters: tuple[str, ...] = (
        "sglang:realtime_tokens_total",
        "sglang:prompt_tokens_total",
        "sglang:generation_tokens_total",
    )
    figures = FigureNames(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        cache_used=("sglang:token_usage",),
        # `realtime_…` grow while a request runs, the others, which older ones have alone, when it has ended.
        prefix_queries=((_READ, _CACHED), ("sglang:prompt_tokens_total",)),
        prefix_hits=((_CACHED,), ("sglang:cached_tokens_total",)),
        prompt_tokens=((_READ, _CACHED), ("sglang:prompt_tokens_total",)),
        tokens=(('sglang:realtime_tokens_total{mode="decode"}',), ("sglang:generation_tokens_total",)),
        # `num_retracted_reqs` is a gauge of one moment, and counts nothing.
        preemptions=(("sglang:num_retracted_requests_total",),),
    )
    takes_key = True

    def offered(self, config: AgentConfig) -> bool:
        """True when the agent's configuration has `engines.sglang`."""
        return config.engines.sglang is not None

    def program(self, config: AgentConfig) -> str:
        """`engines.sglang.python`, a name or a path."""
        return _engine(config).python

    def extra_ports(self, spec: ShardSpec, config: AgentConfig) -> int:
        """One: on a single node where its own ranks meet, on a worker the health page that it insists on."""
        return 1 if spec.nodes == 1 or spec.rank > 0 else 0

    def problems(self, spec: ShardSpec, context: LaunchContext) -> list[str]:
        """Sentences that say why this shard cannot run here."""
        sentences = source_problems(spec, context)
        if is_gguf(spec, context) and not located(spec, context).lower().endswith(".gguf"):
            sentences.append(
                f"source {spec.source!r} of model {spec.model!r} names GGUF files in a hub, and SGLang loads one "
                "such file by its path; give the path or URL of the file, or use engine: llamacpp"
            )
        if spec.task not in _TASK_SETTINGS:
            sentences.append(
                f"SGLang does not do the task {spec.task!r} of model {spec.model!r} here; it does "
                f"{', '.join(_TASK_SETTINGS)}: change the model's task or its engine"
            )
        sentences += [
            f"SGLang takes what follows the ':' in {name!r} for the name of a LoRA adapter; give model "
            f"{spec.model!r} names and aliases without ':'"
            for name in spec.served_names
            if ":" in name
        ]
        sentences += rank_problems(spec)
        sizes = {
            "tensor_parallel": (_TENSOR, spec.tensor_parallel),
            "pipeline_parallel": (_PIPELINE, spec.pipeline_parallel),
        }
        if not has_flag(spec.args, _SHARED_DATA, READING):
            sizes["data_parallel"] = (_DATA, 1)
        sentences += parallel_problems(spec, sizes, READING)
        sentences += refused_args(spec.args, REFUSED_ARGS, READING)
        sentences += spelling_problems(spec.args, READING, "SGLang")
        sentences += size_problems(spec.args, SIZES, READING, "SGLang reads 4k as 4000 and refuses 4K")
        sentences += refused_env(spec.env, REFUSED_ENV)
        sentences += network_problems(spec, context)
        return sentences

    def plan(self, spec: ShardSpec, context: LaunchContext) -> LaunchPlan:
        """The command line and environment of one rank.

        `/health` refuses connections while the model loads, says 503 for some seconds, then 200. A key travels
        in a configuration file, since SGLang takes one only there or on its command line.
        """
        engine = _engine(context.config)
        argv, contradictions = compose(self._settings(spec, context), spec.args, READING)
        env, warnings = self._env(spec, context)
        files = network_files(spec, context)
        if context.api_key is not None:
            key_file = _key_file(context.work_dir, context.api_key)
            files.append(key_file)
            argv = ["--config", key_file.path, *argv]
        process = ProcessPlan(name="engine", argv=[engine.python, "-m", "sglang.launch_server", *argv], env=env)
        warnings = [*contradictions, *warnings]
        if spec.rank > 0:
            return LaunchPlan(engine=process, files=files, warnings=warnings)
        health = HttpCheck(method="GET", path="/health", timeout_s=_HEALTH_TIMEOUT_S)
        return LaunchPlan(
            engine=process,
            load=with_key(health, context.api_key),
            readiness=with_key(one_token_check(spec.task, spec.served_names[0]), context.api_key),
            files=files,
            warnings=warnings,
        )

    def _settings(self, spec: ShardSpec, context: LaunchContext) -> list[Setting]:
        model = located(spec, context)
        settings = [setting("--model-path", model), setting("--served-model-name", spec.served_names[0])]
        if model.lower().endswith(".gguf"):
            settings += [setting("--load-format", "gguf"), setting("--quantization", "gguf")]
        port = context.http_port if spec.rank == 0 else next(iter(context.extra_ports), None)
        if port is None:
            raise ValueError(f"shard {spec.shard_id} was given no port to listen on")
        settings += [setting("--host", context.address), setting("--port", port)]
        settings.append(Setting(spellings=_TENSOR, values=(str(spec.tensor_parallel),)))
        settings.append(Setting(spellings=_PIPELINE, values=(str(spec.pipeline_parallel),)))
        if not context.gpus:
            settings.append(setting("--device", "cpu"))
        if spec.nodes > 1:
            if context.rendezvous_host is None or context.rendezvous_port is None:
                raise ValueError(f"shard {spec.shard_id} is one of {spec.nodes} and was given no rendezvous")
            meeting = join_host_port(context.rendezvous_host, context.rendezvous_port)
            settings += [setting("--nnodes", spec.nodes), setting("--node-rank", spec.rank)]
            settings.append(setting("--dist-init-addr", meeting))
        elif context.extra_ports:
            settings.append(setting("--nccl-port", context.extra_ports[0]))
        return [*settings, setting("--enable-metrics"), *_TASK_SETTINGS[spec.task]]

    def _env(self, spec: ShardSpec, context: LaunchContext) -> tuple[dict[str, str], list[str]]:
        networks, warnings = network_env(spec, context)
        if spec.nodes > 1:
            networks["SGLANG_HOST_IP"] = context.address
        merged, contradictions = merge_env(networks, beside_networks(spec))
        env = {**python_env(_engine(context.config).python, context), **merged}
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in context.gpus)
        return env, [*contradictions, *warnings, *secret_warnings(spec.env)]


def _engine(config: AgentConfig) -> SglangEngine:
    return config.engines.sglang or SglangEngine()


def _key_file(work_dir: str, key: str) -> PlanFile:
    # A JSON string is YAML, whatever the key consists of; the ending decides how SGLang reads it.
    return PlanFile(path=f"{work_dir}/sglang-key.yaml", content=f"api-key: {json.dumps(key)}\n")
