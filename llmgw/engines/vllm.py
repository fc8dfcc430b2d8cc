"""vLLM: `vllm serve` on one node, or a rank of it on each of several.

Flags and behaviour as of 0.32 and 0.33. Several nodes start by vLLM's own `mp`, or over Ray where a node's
agent.yaml says so (`ray_cluster.py`).
"""

from __future__ import annotations

from dataclasses import replace

from llmgw.config.agent import AgentConfig, VllmEngine
from llmgw.engines.base import HttpCheck, LaunchContext, LaunchPlan, ProcessPlan
from llmgw.engines.command_line import Setting, compose, setting
from llmgw.engines.figures import FigureNames
from llmgw.engines.networks import beside_networks, network_env, network_files, network_problems
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
from llmgw.engines.programs import beside, python_env
from llmgw.engines.ray_cluster import not_carried_over, ray_address, ray_head, ray_ports, ray_process
from llmgw.engines.sources import is_gguf, located, source_problems
from llmgw.engines.vllm_flags import (
    DATA,
    PIPELINE,
    READING,
    REFUSED_ARGS,
    REFUSED_ENV,
    SIZES,
    TENSOR,
    data_parallel_problems,
    dev_mode_warnings,
    foreign_flags,
)
from llmgw.messages.agent import ShardSpec

# A model runner serves one kind of task; the pooling one embeds, classifies and scores, as the model can.
_RUNNERS = {
    "chat": "generate",
    "completion": "generate",
    "transcription": "generate",
    "embedding": "pooling",
    "rerank": "pooling",
    "score": "pooling",
}

# An engine of one node talks to itself only: what it opens for that need not be reachable.
_LOOPBACK = "127.0.0.1"


class VllmAdapter:
    """Plans for `vllm serve`."""

    name = "vllm"
    progress_counters: tuple[str, ...] = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    figures = FigureNames(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        # The second is what the first was called up to 0.10.
        cache_used=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        # In tokens; with `gpu_` up to 0.10 too.
        prefix_queries=(("vllm:prefix_cache_queries_total",), ("vllm:gpu_prefix_cache_queries_total",)),
        prefix_hits=(("vllm:prefix_cache_hits_total",), ("vllm:gpu_prefix_cache_hits_total",)),
        prompt_tokens=(("vllm:prompt_tokens_total",),),
        tokens=(("vllm:generation_tokens_total",),),
        preemptions=(("vllm:num_preemptions_total",),),
    )
    takes_key = True

    def offered(self, config: AgentConfig) -> bool:
        """True when the agent's configuration has `engines.vllm`."""
        return config.engines.vllm is not None

    def program(self, config: AgentConfig) -> str:
        """`engines.vllm.bin`, a name or a path."""
        return _engine(config).bin

    def extra_ports(self, spec: ShardSpec, config: AgentConfig) -> int:
        """Those of Ray. What vLLM opens between its own processes are ports of the kernel's choice."""
        return ray_ports(spec) if _over_ray(spec, config) else 0

    def problems(self, spec: ShardSpec, context: LaunchContext) -> list[str]:
        """Sentences that say why this shard cannot run here."""
        sentences = source_problems(spec, context)
        if is_gguf(spec, context):
            sentences.append(
                f"source {spec.source!r} of model {spec.model!r} is a GGUF file, which vLLM is not given here; "
                "run it with engine: llamacpp, or name a model in safetensors"
            )
        if spec.task not in _RUNNERS:
            sentences.append(
                f"vLLM does not do the task {spec.task!r} of model {spec.model!r} here; it does "
                f"{', '.join(_RUNNERS)}: change the model's task or its engine"
            )
        sentences += rank_problems(spec)
        sizes = {
            "tensor_parallel": (TENSOR, spec.tensor_parallel),
            "pipeline_parallel": (PIPELINE, spec.pipeline_parallel),
            "data_parallel": (DATA, 1),
        }
        sentences += data_parallel_problems(spec.args, spec.nodes) or parallel_problems(spec, sizes, READING)
        if _over_ray(spec, context.config) and any(not gpu.uuid.startswith("GPU-") for gpu in context.gpus):
            sentences.append("vLLM over Ray counts whole GPUs only; use launch_mode: mp for MIG devices")
        sentences += refused_args(spec.args, REFUSED_ARGS, READING)
        sentences += spelling_problems(spec.args, READING, "vLLM")
        sentences += size_problems(spec.args, SIZES, READING, "vLLM reads 4k as 4000 and 4K as 4096")
        sentences += foreign_flags(spec.args)
        sentences += refused_env(spec.env, REFUSED_ENV)
        sentences += network_problems(spec, context)
        return sentences

    def plan(self, spec: ShardSpec, context: LaunchContext) -> LaunchPlan:
        """The command line and environment of one rank.

        The leader serves HTTP; a worker runs `--headless`, or joins the leader's Ray cluster. `/health` refuses
        connections while the model loads, then says 200.
        """
        engine = _engine(context.config)
        over_ray = _over_ray(spec, context.config)
        env, warnings = self._env(spec, context)
        argv, contradictions = compose(self._settings(spec, context), spec.args, READING)
        argv = [engine.bin, "serve", located(spec, context), *argv]
        warnings = [*contradictions, *warnings]
        files = network_files(spec, context)
        if over_ray and spec.rank > 0:
            joined = ray_process(spec, context, beside(engine.bin, "ray"), env, "engine")
            return LaunchPlan(engine=joined, files=files, warnings=warnings)
        if spec.rank > 0:
            engine_plan = ProcessPlan(name="engine", argv=argv, env=env)
            return LaunchPlan(engine=engine_plan, files=files, warnings=warnings)
        leader = dict(env) if context.api_key is None else {**env, "VLLM_API_KEY": context.api_key}
        served = LaunchPlan(
            engine=ProcessPlan(name="engine", argv=argv, env=leader),
            load=with_key(HttpCheck(method="GET", path="/health", timeout_s=5.0), context.api_key),
            readiness=with_key(one_token_check(spec.task, spec.served_names[0]), context.api_key),
            files=files,
            warnings=warnings,
        )
        return self._beside_head(served, spec, context, env) if over_ray else served

    def _beside_head(
        self, served: LaunchPlan, spec: ShardSpec, context: LaunchContext, env: dict[str, str]
    ) -> LaunchPlan:
        """The same plan with the head of a Ray cluster before the engine, which waits for it."""
        head = ray_process(spec, context, beside(_engine(context.config).bin, "ray"), env, "ray")
        engine = replace(
            served.engine, env={**served.engine.env, **ray_address(context)}, waits_for=ray_head(context)
        )
        return replace(served, engine=engine, sidecars=[head], files=[*served.files, not_carried_over(context)])

    def _settings(self, spec: ShardSpec, context: LaunchContext) -> list[Setting]:
        """Everything that this rank is told, in order; the model, a positional argument, comes before."""
        settings = [setting("--served-model-name", *spec.served_names)]
        if spec.rank == 0:
            if context.http_port is None:
                raise ValueError(f"shard {spec.shard_id} leads its replica and was given no port to serve on")
            settings += [setting("--host", context.address), setting("--port", context.http_port)]
        settings.append(Setting(spellings=TENSOR, values=(str(spec.tensor_parallel),)))
        settings.append(Setting(spellings=PIPELINE, values=(str(spec.pipeline_parallel),)))
        settings.append(setting("--runner", _RUNNERS[spec.task]))
        if spec.nodes > 1:
            settings += _several_nodes(spec, context)
        if spec.rank == 0:
            drain_s = int(_stop_timeout_s(spec, context.config) / 2)
            if drain_s > 0:
                # Else SIGTERM ends every stream at once; the other half is for taking its workers down.
                settings.append(setting("--shutdown-timeout", drain_s))
        return settings

    def _env(self, spec: ShardSpec, context: LaunchContext) -> tuple[dict[str, str], list[str]]:
        """(the environment of this rank's processes, sentences about it)."""
        networks, warnings = network_env(spec, context)
        ours = {
            "VLLM_HOST_IP": context.address if spec.nodes > 1 else _LOOPBACK,
            "VLLM_NO_USAGE_STATS": "1",
            **networks,
        }
        merged, contradictions = merge_env(ours, beside_networks(spec))
        env = {**python_env(_engine(context.config).bin, context), **merged}
        if _over_ray(spec, context.config):
            # Ray's own accounting and vLLM's reading of it know GPUs by their numbers only.
            env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu.index) for gpu in context.gpus)
        else:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in context.gpus)
        return env, [*contradictions, *warnings, *secret_warnings(spec.env), *dev_mode_warnings(spec.env)]


def _engine(config: AgentConfig) -> VllmEngine:
    return config.engines.vllm or VllmEngine()


def _over_ray(spec: ShardSpec, config: AgentConfig) -> bool:
    return spec.nodes > 1 and _engine(config).launch_mode == "ray"


def _several_nodes(spec: ShardSpec, context: LaunchContext) -> list[Setting]:
    if _over_ray(spec, context.config):
        return [setting("--distributed-executor-backend", "ray")]
    if context.rendezvous_host is None or context.rendezvous_port is None:
        raise ValueError(f"shard {spec.shard_id} is one of {spec.nodes} and was given no rendezvous")
    settings = [
        setting("--nnodes", spec.nodes),
        setting("--node-rank", spec.rank),
        setting("--master-addr", context.rendezvous_host),
        setting("--master-port", context.rendezvous_port),
    ]
    return settings if spec.rank == 0 else [*settings, setting("--headless")]


def _stop_timeout_s(spec: ShardSpec, config: AgentConfig) -> float:
    return spec.stop_timeout_s if spec.stop_timeout_s is not None else config.supervisor.stop_timeout
