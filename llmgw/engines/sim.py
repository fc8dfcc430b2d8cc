"""The simulated engine: `llmgw sim engine` of this very program. It needs no GPU and loads nothing.

The profile's `args` go to it last, which is how speeds and faults are set: `--load-s 5 --tokens-per-s 50`.
"""

from __future__ import annotations

from llmgw.config.agent import AgentConfig
from llmgw.config.own_program import own_program
from llmgw.engines.base import HttpCheck, LaunchContext, LaunchPlan, ProcessPlan, inherited_env
from llmgw.engines.command_line import Reading
from llmgw.engines.figures import FigureNames
from llmgw.engines.networks import (
    REFUSED_NETWORK_ENV,
    beside_networks,
    network_env,
    network_files,
    network_problems,
)
from llmgw.engines.overrides import merge_env, refused_args, refused_env, secret_warnings
from llmgw.engines.parallelism import rank_problems
from llmgw.engines.probes import one_token_check, with_key
from llmgw.messages.agent import ShardSpec

# Click takes `--flag=value`, and neither abbreviations nor underscores.
READING = Reading(equals=True)

_TASKS = ("chat", "completion", "embedding", "rerank", "score")

# What the program, being llmgw itself, needs of the agent's environment beside what every engine inherits:
# where the package lies when it is not installed, and the simulated node whose GPU memory it takes.
_OWN_ENV = ("PYTHONPATH", "VIRTUAL_ENV", "LLMGW_SIM_HARDWARE")

_ADDRESS = "the agent chooses where an engine listens"
_REPLICA = "the control plane decides a replica's shape and names"
REFUSED_ARGS = {
    "--host": _ADDRESS,
    "--port": _ADDRESS,
    "--served-name": _REPLICA,
    "--gpus": "the agent chooses a shard's GPUs",
    "--rank": _REPLICA,
    "--nnodes": _REPLICA,
    "--group": _REPLICA,
    "--rendezvous-host": _ADDRESS,
    "--rendezvous-port": _ADDRESS,
    "--rendezvous-timeout-s": "the profile's own key rendezvous_timeout says it",
}


class SimAdapter:
    """Plans for `llmgw sim engine`."""

    name = "sim"
    progress_counters: tuple[str, ...] = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    figures = FigureNames(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        cache_used=("vllm:kv_cache_usage_perc",),
        prefix_queries=(("vllm:prefix_cache_queries_total",),),
        prefix_hits=(("vllm:prefix_cache_hits_total",),),
        prompt_tokens=(("vllm:prompt_tokens_total",),),
        tokens=(("vllm:generation_tokens_total",),),
    )
    takes_key = True

    def offered(self, config: AgentConfig) -> bool:
        """True when `engines.sim.enabled` is set."""
        return config.engines.sim.enabled

    def program(self, config: AgentConfig) -> str:
        """The interpreter that runs llmgw, or the program that holds it."""
        return own_program()[0]

    def extra_ports(self, spec: ShardSpec, config: AgentConfig) -> int:
        """None: it talks to nobody but its clients and its own ranks."""
        return 0

    def problems(self, spec: ShardSpec, context: LaunchContext) -> list[str]:
        """Sentences that say why this shard cannot run here."""
        sentences = []
        if spec.task not in _TASKS:
            sentences.append(
                f"the simulated engine does not do the task {spec.task!r} of model {spec.model!r}; "
                f"it does {', '.join(_TASKS)}: change the model's task or its engine"
            )
        sentences += rank_problems(spec)
        sentences += refused_args(spec.args, REFUSED_ARGS, READING)
        sentences += refused_env(spec.env, REFUSED_NETWORK_ENV)
        sentences += network_problems(spec, context)
        return sentences

    def plan(self, spec: ShardSpec, context: LaunchContext) -> LaunchPlan:
        """The command line and environment of one shard.

        Workers are given no port: they serve nothing. `GET /v1/models` is the cheap check while it loads (like
        vLLM, the port refuses connections until then), since `/health` answers with an empty body.
        """
        argv = own_program("sim", "engine")
        if spec.rank == 0:
            if context.http_port is None:
                raise ValueError(f"shard {spec.shard_id} leads its replica and was given no port to serve on")
            argv += ["--host", context.address, "--port", str(context.http_port)]
        for name in spec.served_names:
            argv += ["--served-name", name]
        argv += ["--gpus", str(len(context.gpus))]
        if spec.nodes > 1:
            if context.rendezvous_host is None or context.rendezvous_port is None:
                raise ValueError(f"shard {spec.shard_id} is one of {spec.nodes} and was given no rendezvous")
            argv += ["--group", spec.replica_id, "--rank", str(spec.rank), "--nnodes", str(spec.nodes)]
            argv += ["--rendezvous-host", context.rendezvous_host]
            argv += ["--rendezvous-port", str(context.rendezvous_port)]
            argv += ["--rendezvous-timeout-s", f"{spec.rendezvous_timeout_s:g}"]
        argv += spec.args

        networks, warnings = network_env(spec, context) if spec.nodes > 1 else ({}, [])
        merged, contradictions = merge_env(networks, beside_networks(spec))
        env = inherited_env(context.base_env)
        env |= {key: context.base_env[key] for key in _OWN_ENV if key in context.base_env}
        env |= merged
        if context.api_key is not None:
            env["LLMGW_SIM_API_KEY"] = context.api_key
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in context.gpus)
        engine = ProcessPlan(name="engine", argv=argv, env=env)
        files = network_files(spec, context)
        warnings = [*contradictions, *warnings, *secret_warnings(spec.env)]
        if spec.rank > 0:
            return LaunchPlan(engine=engine, files=files, warnings=warnings)
        return LaunchPlan(
            engine=engine,
            load=with_key(HttpCheck(method="GET", path="/v1/models", timeout_s=5.0), context.api_key),
            readiness=with_key(one_token_check(spec.task, spec.served_names[0]), context.api_key),
            files=files,
            warnings=warnings,
        )
