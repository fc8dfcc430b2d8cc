"""llama.cpp's `llama-server`: one GGUF file on one node, on its GPUs or on the CPU.

Flags and environment as of build 11434; what older builds may lack is set in the environment, where they ignore
it, since they end at once on a flag that they do not know.
"""

from __future__ import annotations

import re

from llmgw.config.agent import AgentConfig, LlamacppEngine
from llmgw.engines.base import HttpCheck, LaunchContext, LaunchPlan, ProcessPlan, inherited_env
from llmgw.engines.command_line import Reading, Setting, compose, setting, value_of
from llmgw.engines.figures import FigureNames
from llmgw.engines.overrides import (
    merge_env,
    refused_args,
    refused_env,
    secret_warnings,
    size_problems,
    spelling_problems,
)
from llmgw.engines.probes import one_token_check, with_key
from llmgw.engines.sources import located
from llmgw.messages.agent import ShardSpec

# Its own parser: no abbreviations, no `--flag=value`.
READING = Reading(underscores=True)

# The flag that turns on what the task needs; a chat model needs none.
_TASK_SETTINGS: dict[str, list[Setting]] = {
    "chat": [],
    "completion": [],
    "embedding": [setting("--embeddings --embedding")],
    "rerank": [setting("--reranking --rerank")],
}

# A llama-server that was told to stop keeps its clients waiting until the next SSE comment shows it that they
# are still there; 30 s by default.
_SSE_PING_S = 3

_ADDRESS = "the agent chooses where an engine listens"
_DEVICE = "the agent chooses a shard's GPUs"
_MODEL = "the model's source says what is loaded"
_KEY = "the agent gives the engine a key of its own, by its environment"
_TOKEN = "command lines are read by everyone on the node; set HF_TOKEN in the agent's environment"
_TLS = "the gateway speaks plain HTTP to engines"
REFUSED_ARGS = {
    **dict.fromkeys(["--host", "--port", "--reuse-port", "--api-prefix"], _ADDRESS),
    **dict.fromkeys(["-dev", "--device", "-devd", "--device-draft", "--spec-draft-device"], _DEVICE),
    **dict.fromkeys(["-mmdev", "--mmproj-device"], _DEVICE),
    "--rpc": "it would use GPUs of other nodes that nobody placed it on",
    **dict.fromkeys(["-a", "--alias"], "the model's name and aliases are the catalog's"),
    **dict.fromkeys(["-m", "--model", "-mu", "--model-url", "-dr", "--docker-repo"], _MODEL),
    **dict.fromkeys(["-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"], _MODEL),
    **dict.fromkeys(["--models-dir", "--models-preset"], _MODEL),
    **dict.fromkeys(["--embd-gemma-default", "--gpt-oss-20b-default", "--gpt-oss-120b-default"], _MODEL),
    **dict.fromkeys(["--vision-gemma-4b-default", "--vision-gemma-12b-default"], _MODEL),
    **dict.fromkeys(["--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default"], _MODEL),
    **dict.fromkeys(["--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--fim-qwen-30b-default"], _MODEL),
    **dict.fromkeys(["--hf-token", "-hft"], _TOKEN),
    **dict.fromkeys(["--api-key", "--api-key-file"], _KEY),
    **dict.fromkeys(["--ssl-key-file", "--ssl-cert-file"], _TLS),
}
# The same settings as llama-server reads them from its environment.
REFUSED_ENV = {
    **dict.fromkeys(
        ["LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "LLAMA_ARG_REUSE_PORT", "LLAMA_ARG_API_PREFIX"], _ADDRESS
    ),
    **dict.fromkeys(["LLAMA_ARG_DEVICE", "LLAMA_ARG_SPEC_DRAFT_DEVICE", "MTMD_BACKEND_DEVICE"], _DEVICE),
    "LLAMA_ARG_RPC": REFUSED_ARGS["--rpc"],
    "LLAMA_ARG_ALIAS": REFUSED_ARGS["--alias"],
    **dict.fromkeys(["LLAMA_ARG_MODEL", "LLAMA_ARG_MODEL_URL", "LLAMA_ARG_DOCKER_REPO"], _MODEL),
    **dict.fromkeys(["LLAMA_ARG_HF_REPO", "LLAMA_ARG_HF_FILE"], _MODEL),
    **dict.fromkeys(["LLAMA_ARG_MODELS_DIR", "LLAMA_ARG_MODELS_PRESET"], _MODEL),
    **dict.fromkeys(["LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE"], _KEY),
    **dict.fromkeys(["LLAMA_ARG_SSL_KEY_FILE", "LLAMA_ARG_SSL_CERT_FILE"], _TLS),
}

_PARALLEL = ("--parallel", "-np")
_SPLIT_MODE = ("--split-mode", "-sm")

SIZES = (
    *("-c", "--ctx-size", "-n", "--predict", "--n-predict", "-b", "--batch-size", "-ub", "--ubatch-size"),
    *("-np", "--parallel", "--kv-unified-per-slot"),
)


class LlamacppAdapter:
    """Plans for `llama-server`."""

    name = "llamacpp"
    # The token counters move only when a request ends; decode calls are counted as they happen.
    progress_counters: tuple[str, ...] = ("llamacpp:prompt_tokens_total", "llamacpp:n_decode_total")
    figures = FigureNames(
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        # No longer told by newer ones.
        cache_used=("llamacpp:kv_cache_usage_ratio",),
        # The first counts what was really read, and leaves out what the cache had; older ones tell only that.
        prefix_queries=(("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),),
        prefix_hits=(("llamacpp:prompt_tokens_cached_total",),),
        prompt_tokens=(("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),),
        tokens=(("llamacpp:tokens_predicted_total",),),
    )
    takes_key = True

    def offered(self, config: AgentConfig) -> bool:
        """True when the agent's configuration has `engines.llamacpp`."""
        return config.engines.llamacpp is not None

    def program(self, config: AgentConfig) -> str:
        """`engines.llamacpp.bin`, a name or a path."""
        return _engine(config).bin

    def extra_ports(self, spec: ShardSpec, config: AgentConfig) -> int:
        """None: it talks to nobody but its clients."""
        return 0

    def problems(self, spec: ShardSpec, context: LaunchContext) -> list[str]:
        """Sentences that say why this shard cannot run here."""
        who = f"profile {spec.profile!r} of model {spec.model!r}"
        sentences = _source_problems(spec, context)
        if spec.nodes > 1:
            sentences.append(f"{who} asks for {spec.nodes} nodes, and llama.cpp runs on one; set nodes to 1")
        gpus = len(spec.gpus)
        if spec.tensor_parallel > 1 and spec.pipeline_parallel > 1:
            sentences.append(
                f"{who} asks for tensor_parallel {spec.tensor_parallel} and pipeline_parallel "
                f"{spec.pipeline_parallel}, and llama.cpp spreads a model over its GPUs in one way only "
                "(by layers, or as --split-mode in args says); leave both out"
            )
        elif gpus == 0 and spec.tensor_parallel * spec.pipeline_parallel > 1:
            sentences.append(
                f"{who} asks for parallelism without GPUs; set gpus_per_node, or leave tensor_parallel and "
                "pipeline_parallel out to run on the CPU"
            )
        if spec.task not in _TASK_SETTINGS:
            sentences.append(
                f"llama.cpp does not do the task {spec.task!r} of model {spec.model!r}; "
                f"it does {', '.join(_TASK_SETTINGS)}: change the model's task or its engine"
            )
        sentences += refused_args(spec.args, REFUSED_ARGS, READING)
        sentences += spelling_problems(spec.args, READING, "llama-server")
        sentences += size_problems(spec.args, SIZES, READING, "llama-server reads no units (it takes 4k for 4)")
        sentences += _split_problems(spec)
        sentences += refused_env(spec.env, REFUSED_ENV)
        return sentences

    def plan(self, spec: ShardSpec, context: LaunchContext) -> LaunchPlan:
        """The command line and environment of the one shard.

        `llama-server` answers 503 on `/health` while it loads. It falls back to a general chat template for
        files that carry none, so base models answer chat probes as well.
        """
        if context.http_port is None:
            raise ValueError(f"shard {spec.shard_id} was given no port to serve on")
        engine = _engine(context.config)
        settings = [
            setting("--model", located(spec, context)),
            setting("--alias", ",".join(spec.served_names)),
            setting("--host", context.address),
            setting("--port", context.http_port),
            setting("--metrics"),
            setting("--no-webui"),
            *_TASK_SETTINGS[spec.task],
            Setting(spellings=_PARALLEL, values=(str(engine.parallel),)),
        ]
        if not context.gpus:
            settings.append(setting("--device", "none"))
        argv, contradictions = compose(settings, spec.args, READING)
        ours = {
            "LLAMA_ARG_SSE_PING_INTERVAL": str(_SSE_PING_S),
            # Else the context is divided: each of four slots would see a quarter of what the model can do.
            "LLAMA_ARG_KV_UNIFIED": "true",
            # Else any web page that a person of this network opens may use the engine behind the gateway's back.
            "LLAMA_ARG_CORS_ORIGINS": "localhost",
        }
        merged, warnings = merge_env(ours, spec.env)
        env = {**inherited_env(context.base_env), **merged}
        if context.api_key is not None:
            env["LLAMA_API_KEY"] = context.api_key
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in context.gpus)
        return LaunchPlan(
            engine=ProcessPlan(name="engine", argv=[engine.bin, *argv], env=env),
            load=with_key(HttpCheck(method="GET", path="/health", timeout_s=5.0), context.api_key),
            readiness=with_key(one_token_check(spec.task, spec.served_names[0]), context.api_key),
            warnings=[*contradictions, *warnings, *secret_warnings(spec.env)],
        )


def _engine(config: AgentConfig) -> LlamacppEngine:
    return config.engines.llamacpp or LlamacppEngine()


def _source_problems(spec: ShardSpec, context: LaunchContext) -> list[str]:
    source = spec.source
    where = f"source {source!r} of model {spec.model!r}"
    if context.model_path is not None:
        if not context.model_path.lower().endswith(".gguf"):
            return [f"{where} is not a GGUF file; give the URL of a file whose name ends in .gguf"]
        return []
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source):
        return [f"{where} is no URL that llmgw fetches; give one with https://, http:// or file://, or a path"]
    if not source.startswith(("/", "./", "../")):
        return [
            f"{where} is not a path, and llama.cpp loads a file here; give an absolute path to a .gguf file "
            "(or one that begins with ./ and is seen from the agent's folder)"
        ]
    if "\0" in source or not source.lower().endswith(".gguf"):
        return [f"{where} is not a GGUF file; give the path of a file whose name ends in .gguf"]
    return []


def _split_problems(spec: ShardSpec) -> list[str]:
    """Sentences for a way to split the model that leaves GPUs of the shard idle."""
    sentences = []
    mode = value_of(spec.args, _SPLIT_MODE, READING)
    if mode == "none" and len(spec.gpus) > 1:
        sentences.append(
            f"args has {_SPLIT_MODE[0]} none, which uses one GPU, and the shard has {len(spec.gpus)}; set "
            "gpus_per_node to 1"
        )
    return sentences
